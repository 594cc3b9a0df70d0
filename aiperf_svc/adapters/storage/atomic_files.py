"""Writes files atomically.

A file is written under a temporary name and renamed when it is complete, so a partial file is never
mistaken for a result.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX
from aiperf_svc.domain.errors import EnvironmentProblem


def write_file(path: Path, render: Callable[[], bytes]) -> None:
    """Write one file from its content. Raises EnvironmentProblem."""
    content = render()
    write_atomically(path, lambda part: part.write_bytes(content))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file and rename it; remove it on failure.

    Raises EnvironmentProblem if the file cannot be written.
    """
    part = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the user must see the first error
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def unwritable(path: Path, error: OSError) -> EnvironmentProblem:
    """Return the error for a file or folder that cannot be written."""
    return EnvironmentProblem(
        f"cannot write {path}: {error.strerror or error}; "
        "free some space or choose another folder (artifacts.dir)"
    )
