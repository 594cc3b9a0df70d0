"""Pulumi's state in a folder: configured so that a kill cannot break it, and repaired if it is
broken.

The CLI replaces a file by renaming, and keeps a second file `<file>.attrs` beside it, which it
creates empty and then fills. A kill in between leaves a state that no command can read. The second
file holds a content type and a checksum. Pulumi does not need them: an option in the backend's URL
turns the file off, and an unreadable one can be removed.

    <folder>/.pulumi/
        meta.yaml
        stacks/<project>/<stack>.json           with .bak, the previous version
        backups/<project>/<stack>/              one file for each command
        locks/organization/<project>/<stack>/   one file for each process that works on the stack
"""

import json
import os
import pwd
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

SCHEME = "file://"
ATTRIBUTES = ".attrs"
UNFINISHED = "fileblob"
"""Prefix of files that are renamed when they are complete."""
OLD_S, LOCK_OLD_S = 60.0, 1.0
"""Age after which an unfinished file counts as abandoned; writing a file takes milliseconds."""
BROKEN = ".broken"
"""Suffix of an unreadable checkpoint."""


def user_home() -> Path:
    """Return the home folder as the CLI finds it: from the passwd entry, or from `HOME` if there is
    no entry."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def pulumi_home(environ: Mapping[str, str]) -> Path:
    """Return the folder in which the CLI keeps its logins and its plugins."""
    return Path(environ.get("PULUMI_HOME") or user_home() / ".pulumi")


def folder_of(url: str) -> Path | None:
    """Return the folder of a backend's URL; None for other backends."""
    if not url.startswith(SCHEME):
        return None
    path = url.removeprefix(SCHEME).partition("?")[0]
    if path == "~" or path.startswith("~/"):
        return user_home() / path[2:]
    return Path(path).absolute()


def without_attributes(url: str) -> str:
    """Return the URL of a folder backend with an absolute path and with the option that turns
    `.attrs` files off; any other URL unchanged."""
    folder = folder_of(url)
    if folder is None:
        return url
    query = dict(parse_qsl(url.partition("?")[2])) | {"metadata": "skip"}
    return f"{SCHEME}{folder}?{urlencode(query)}"


def repair(folder: Path, *, project: str, stack: str) -> tuple[str, ...]:
    """Make a stack's state readable after a command was killed, by removing or replacing files.
    Returns descriptions of the repairs. Raises OSError."""
    state = folder / ".pulumi"
    stacks = state / "stacks" / project
    locks = state / "locks" / "organization" / project / stack
    histories = [state / name / project / stack for name in ("backups", "history")]
    done = []
    for path in (state / f"meta.yaml{ATTRIBUTES}", *_files((stacks, locks, *histories))):
        if path.name.endswith(ATTRIBUTES) and not _is_json(path):
            path.unlink(missing_ok=True)
            done.append(f"removed {path}, an incomplete and unnecessary file")
        elif path.name.startswith(UNFINISHED) and _age_s(path) > (
            LOCK_OLD_S if path.parent == locks else OLD_S
        ):
            path.unlink(missing_ok=True)
            done.append(f"removed {path}, an incomplete file")
    checkpoint = stacks / f"{stack}.json"
    if checkpoint.exists() and not _is_json(checkpoint):
        done += _restore(checkpoint, histories[0])
    return tuple(done)


def _restore(checkpoint: Path, backups: Path) -> list[str]:
    backup = checkpoint.with_name(f"{checkpoint.name}.bak")
    found = [path for path in (backup, *_files((backups,))) if _is_backup(path)]
    if not found:
        return []
    newest = max(found, key=lambda path: path.stat().st_mtime_ns)
    content = newest.read_bytes()
    part = checkpoint.with_name(f"{checkpoint.name}.part")
    part.write_bytes(content)
    checkpoint.replace(checkpoint.with_name(f"{checkpoint.name}{BROKEN}"))
    part.replace(checkpoint)
    return [
        f"{checkpoint} could not be read and was replaced by {newest}, the version before. Objects "
        f"that were created since are known by their label only. The broken file is "
        f"{checkpoint.name}{BROKEN}"
    ]


def _is_backup(path: Path) -> bool:
    return path.suffix in (".json", ".bak") and path.exists() and _is_json(path)


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from sorted(folder.iterdir())


def _is_json(path: Path) -> bool:
    """Return whether a file holds a JSON object; a file that disappears meanwhile counts as one."""
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except FileNotFoundError:
        return True
    except ValueError:
        return False


def _age_s(path: Path) -> float:
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return 0.0
