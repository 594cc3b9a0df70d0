"""`manifest.json`: size and SHA-256 of every file of a run, for verifying copies."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

NAME = "manifest.json"
TEMPORARY_SUFFIX = ".part"
"""Suffix of unfinished files, which are never in a manifest."""
MAX_NAME_LENGTH = 255
"""Longest name in most file systems, in bytes."""


class ManifestEntry(msgspec.Struct, frozen=True):
    """One file, by its path below the artifact folder."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """List of all files in an artifact folder except the manifest itself."""

    run_id: str
    files: tuple[ManifestEntry, ...]


def build_manifest(folder: Path, run_id: str, *, known: Manifest | None = None) -> Manifest:
    """List every finished file below `folder`. A file with the same size as in `known` is not read
    again: results are never changed in place, only logs grow. Raises OSError."""
    return Manifest(run_id, list_files(folder, folder, known=known.files if known else ()))


def renewed(folder: Path, paths: Iterable[Path]) -> Manifest:
    """Return the manifest of a folder with updated entries for changed files. Raises OSError, and
    the errors of `read_manifest`."""
    manifest = read_manifest(folder)
    entries = {entry.name: entry for entry in (_entry(folder, path, {}) for path in paths)}
    files = (entries.get(each.name, each) for each in manifest.files)
    return Manifest(manifest.run_id, tuple(files))


def list_files(
    folder: Path, below: Path, *, known: Iterable[ManifestEntry] = ()
) -> tuple[ManifestEntry, ...]:
    """List the finished files below a folder inside `folder`, or the single file `below`; empty if
    it does not exist. A file with the same size as in `known` is not read again. Raises OSError."""
    paths = below.rglob("*") if below.is_dir() else (below,)
    found = sorted(path for path in paths if path.is_file() and _is_result(folder, path))
    old = {entry.name: entry for entry in known}
    return tuple(_entry(folder, path, old) for path in found)


def check_entry(entry: ManifestEntry) -> None:
    """Raise EnvironmentProblem if an entry is not a valid file of a run. A manifest cannot make its
    reader access files outside the folder."""
    parts = entry.name.split("/")
    is_plain = entry.name.isprintable() and entry.name != NAME
    if not is_plain or not all(map(is_plain_part, parts)):
        raise EnvironmentProblem(
            f"manifest: '{one_line(entry.name)}' is not the name of a result: expected a path "
            "below the run's folder"
        )
    if entry.size < 0:
        raise EnvironmentProblem(
            f"manifest: '{entry.name}' has {entry.size} bytes; expected at least 0"
        )


def is_plain_part(part: str) -> bool:
    """Return whether this can be a part of a result's path."""
    is_name = part not in ("", ".", "..") and not part.endswith(TEMPORARY_SUFFIX)
    return is_name and len((part + TEMPORARY_SUFFIX).encode(errors="replace")) <= MAX_NAME_LENGTH


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a run's folder. Raises ConfigError if it has none, and
    EnvironmentProblem."""
    try:
        manifest = msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError) as error:
        problem = f"not the folder of a finished run: it has no {NAME}"
        if not folder.is_dir():
            problem = "no such folder"
        raise ConfigError(f"{folder}: {problem}") from error
    except OSError as error:
        raise EnvironmentProblem(f"{folder / NAME}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise EnvironmentProblem(f"{folder / NAME}: {error}") from error
    for entry in manifest.files:
        check_entry(entry)
    return manifest


def written_manifest(folder: Path) -> Manifest | None:
    """Return the manifest that this program has written into a folder, or None."""
    path = folder / NAME
    return msgspec.json.decode(path.read_bytes(), type=Manifest) if path.exists() else None


def is_whole(path: Path, entry: ManifestEntry) -> bool:
    """Return whether a file has the size and hash of its entry. Raises OSError."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def check_listed(path: Path) -> None:
    """Raise EnvironmentProblem unless a file matches the manifest of its folder."""
    try:
        files = read_manifest(path.parent).files
        entry = next((each for each in files if each.name == path.name), None)
        is_listed = entry is not None and is_whole(path, entry)
    except ConfigError as error:
        raise EnvironmentProblem(str(error)) from error
    except OSError as error:
        raise EnvironmentProblem(f"{path}: {error.strerror or error}") from error
    if not is_listed:
        raise EnvironmentProblem(f"{path}: missing, or not the file that the manifest lists")


def _is_result(folder: Path, path: Path) -> bool:
    parts = path.relative_to(folder).parts
    # The manifest of a trial is an ordinary file of its experiment.
    return path != folder / NAME and not any(part.endswith(TEMPORARY_SUFFIX) for part in parts)


def _entry(folder: Path, path: Path, known: dict[str, ManifestEntry]) -> ManifestEntry:
    name = path.relative_to(folder).as_posix()
    if name in known and known[name].size == path.stat().st_size:
        return known[name]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    return ManifestEntry(name, size, digest)
