"""The two folders of a local run: a private one that is removed after the run, and the artifact
folder.

The private folder holds sockets, keys, the config for the services, and their spilled data. It is
removed at the end. If the runner was killed, the next run removes the folder, which it recognises
by an unheld lock.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import NAME as EXPERIMENT_FILE
from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file
from aiperf_svc.core.experiments.trials import SHAPES
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

PREFIX = "aiperf-run-"
MAX_SOCKET_PATH = 107
"""Maximum length of a Unix socket's path on Linux, in bytes; a few less on other systems."""
MAX_SOCKET_NAME = len("/raw_direct-record-processor-9999")
MAKING_S = 60.0
"""Longest time between the creation of a folder and its lock."""
_LOCK = "lock"
_COLLECTING = ".collecting"
"""Name of the file that marks an artifact folder as incomplete; it contains the run's id."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a new folder that only this user can access, and remove it at the end.

    Raises EnvironmentProblem if it cannot be created.
    """
    with locked_private_folder() as (folder, _):
        yield folder


@contextmanager
def locked_private_folder() -> Iterator[tuple[Path, int | None]]:
    """Like `private_folder`, with the descriptor of the folder's lock: the folder does not count as
    stale while a process holds the descriptor. Raises EnvironmentProblem."""
    remove_stale()
    try:
        folder = _make()
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot create a temporary folder in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; set TMPDIR to another folder"
        ) from error
    lock = _lock(folder / f".{_LOCK}")
    (folder / f".{_LOCK}").rename(folder / _LOCK)
    try:
        yield folder, lock
    finally:
        _remove(folder)
        if lock is not None:
            os.close(lock)


def _make() -> Path:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    if len(os.fsencode(folder)) + MAX_SOCKET_NAME <= MAX_SOCKET_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))


def remove_stale() -> int:
    """Remove this user's private folders whose runner is gone; return how many."""
    removed = 0
    for root in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for folder in root.glob(f"{PREFIX}*"):
            # Another run may be removing it, or another user may own it: ignore both.
            with suppress(OSError):
                if folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
                    removed += _remove_if_stale(folder)
    return removed


def _remove_if_stale(folder: Path) -> bool:
    # Without its lock, a folder is just being created, or its creator has just been killed.
    is_new = time.time() - folder.stat().st_mtime < MAKING_S
    if (is_new and not (folder / _LOCK).exists()) or (lock := _lock(folder / _LOCK)) is None:
        return False
    _remove(folder)
    os.close(lock)
    return True


def _remove(folder: Path) -> None:
    """Remove a folder, its lock last: after a kill in between, it is recognised as stale."""
    with suppress(OSError):
        for path in [each for each in folder.iterdir() if each.name != _LOCK]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock until it is closed; None if it is already held."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def make_dated_folder(parent: Path, name: str, *, now: datetime | None = None) -> Path:
    """Create a new empty folder `<parent>/<name>-<UTC time>`. Raises ConfigError."""
    stamp = f"{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    for number in range(1, 1000):
        folder = parent / f"{name}-{stamp}{f'-{number}' if number > 1 else ''}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if parent.is_dir():
                continue
            raise _unwritable(parent, "a file is in the way") from None
        except OSError as error:
            raise _unwritable(folder, error.strerror or str(error)) from error
        return folder
    raise _unwritable(parent, "a thousand folders of this second are there already")


def make_folder(folder: Path) -> Path:
    """Create an artifact folder at this path, with a folder for logs. Raises ConfigError."""
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error.strerror or str(error)) from error
    return folder


def remove_if_empty(folder: Path) -> bool:
    """Remove an artifact folder without content; return whether it was empty. An experiment without
    a finished trial counts as empty, unless results remain to be fetched."""
    if is_collecting(folder) or (folder / SHAPES).exists():
        return False
    with suppress(ConfigError):
        if is_experiment(folder) and not read_experiment_file(folder).trials:
            (folder / EXPERIMENT_FILE).unlink()
    with suppress(OSError):
        (folder / "logs").rmdir()
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@contextmanager
def collecting(folder: Path, run_id: str) -> Iterator[None]:
    """Mark a folder while results are collected into it. The mark stays if some are missing."""
    mark = folder / _COLLECTING
    with suppress(OSError):
        mark.write_text(run_id)
    yield
    _link_runs(folder)
    mark.unlink(missing_ok=True)


def is_collecting(folder: Path) -> bool:
    """Return whether a folder has the results of a run, but not all of them."""
    return (folder / _COLLECTING).exists()


def end_collecting(folder: Path) -> None:
    """Remove the mark of incomplete results from a folder."""
    (folder / _COLLECTING).unlink(missing_ok=True)


def _link_runs(folder: Path) -> None:
    """Create the links of an experiment, which are not collected as files."""
    if is_experiment(folder):
        # Imported late: it knows all files of an experiment, and takes long to import.
        from aiperf_svc.adapters.storage.experiment_artifacts import write_links

        trials = read_experiment_file(folder).trials
        write_links(folder, {each.number: each.folder for each in trials})


def unfinished(parent: Path, run_id: str) -> Path | None:
    """Return the latest folder in `parent` with incomplete results of the run."""
    marks = [mark for mark in parent.glob(f"*/{_COLLECTING}") if mark.read_text() == run_id]
    return max(marks, key=lambda mark: mark.stat().st_mtime_ns).parent if marks else None


def _unwritable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"cannot write {path}: {why}; choose another folder (artifacts.dir, --artifact-dir)"
    )
