"""Dataset files, plain or gzip, as numbered lines or list elements for `core.datasets`."""

import gzip
import hashlib
import mmap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from aiperf_svc.core.datasets.sharegpt import list_elements
from aiperf_svc.domain.errors import DatasetError

_GZIP_MAGIC = b"\x1f\x8b"


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines and their numbers, from 1. Raises DatasetError if the file cannot be read."""
    with _translated(path), _opened(path) as stream:
        yield from enumerate(stream, start=1)


def read_list(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of a JSON list and the lines on which they begin, without reading all at
    once. Raises DatasetError if the file cannot be read or is not a list.

    Raises DatasetError when the file cannot be read or is no list.
    """
    with _translated(path), _opened(path) as stream:
        yield from list_elements(_contents(stream), str(path))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the file on disk. Raises DatasetError if it cannot be read."""
    with _translated(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with path.open("rb") as stream:
        if stream.peek(2)[:2] == _GZIP_MAGIC:
            with gzip.open(stream) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            yield stream


def _contents(stream: BinaryIO) -> Any:
    """Return a memory map of a plain file, or the bytes of a compressed or empty one. A map is
    freed with its last reader. It cannot be closed earlier: an exception may still hold views of it
    in its frames.

    A map goes away with its last reader. To close it sooner is an error while views of it live, as
    they do whenever an exception carries the frame that holds them.
    """
    if isinstance(stream, gzip.GzipFile):
        return stream.read()
    if not stream.seek(0, 2):
        return b""
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DatasetError(f"dataset.file: there is no file {path}") from error
    except IsADirectoryError as error:
        raise DatasetError(f"dataset.file: {path} is a folder; expected a file") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(f"dataset.file: {path} is damaged gzip: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise DatasetError(f"dataset.file: {path} cannot be read: {reason}") from error
