"""Dataset files, plain or gzip, as numbered lines or list elements for `core.datasets`."""

import gzip
import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from aiperf_svc.config.units import format_size
from aiperf_svc.core.datasets.base import Lines
from aiperf_svc.core.datasets.random_pool import PoolLine, parse_pool
from aiperf_svc.core.datasets.sharegpt import list_elements
from aiperf_svc.core.datasets.trace_index import Line
from aiperf_svc.domain.errors import DatasetError

_GZIP_MAGIC = b"\x1f\x8b"
_POOLS = (".jsonl", ".jsonl.gz")
LONGEST_LINE = 2**28
"""Most bytes of a line."""
Until = Callable[[], bool]


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines and their numbers, from 1. Raises DatasetError if the file cannot be read, or has
    a line over `LONGEST_LINE`, which would be held whole."""
    with _translated(path), _opened(path) as stream:
        lines = iter(partial(stream.readline, LONGEST_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE:
                most = format_size(LONGEST_LINE)
                raise DatasetError(
                    f"{path}:{number}: a line of over {most}B; expected shorter lines"
                )
            yield number, line


class LineFile:
    """A file of lines, which stays open: all in order, then single ones again.

    What a compressed file holds is written to a temporary file meanwhile, because single lines of
    it cannot be read.
    """

    def __init__(self, path: Path, *, is_kept: bool, until: Until) -> None:
        """Open the file; without `is_kept` no line can be read again, and the lines end when
        `until` is true. Raises DatasetError."""
        self._path = path
        self._until = until
        with _translated(path):
            self._file = path.open("rb")
            is_packed = self._file.peek(2)[:2] == _GZIP_MAGIC
            # It is open as long as this object.
            self._copy = TemporaryFile() if is_kept and is_packed else None  # noqa: SIM115
        self._stamp = self._stamp_now()
        self._number = self._position = self._size = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield lines and their numbers. Raises DatasetError as `read_lines`."""
        for number, content in read_lines(self._path):
            self._number = number
            self._position += self._size
            self._size = len(content)
            if self._copy is not None:
                with _translated(self._path):
                    self._copy.write(content)
            yield number, content
            if self._until():
                return

    @property
    def line(self) -> Line:
        """The line that was yielded last."""
        return Line(self._number, self._position, self._size)

    def again(self, lines: Sequence[Line]) -> list[bytes]:
        """Read these lines. Raises DatasetError if the file is not the same any more."""
        with _translated(self._path):
            if self._copy is not None:
                self._copy.flush()
            source = self._copy or self._file
            found = [os.pread(source.fileno(), line.size, line.position) for line in lines]
        if self._stamp_now() != self._stamp:
            raise DatasetError(
                f"dataset.file: {self._path} was changed during the run, which reads it; "
                "leave it alone until the run has ended"
            )
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._copy is not None:
            self._copy.close()

    def _stamp_now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


def read_list(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of a JSON list and the lines on which they begin, without reading all at
    once. Raises DatasetError if the file cannot be read or is not a list.

    Raises DatasetError when the file cannot be read or is no list.
    """
    with _translated(path), _opened(path) as stream:
        yield from list_elements(_contents(stream), str(path))


def is_packed(path: Path) -> bool:
    """Return whether a file is compressed. Raises DatasetError if it cannot be read."""
    with _translated(path), path.open("rb") as stream:
        return stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def pool_files(path: Path) -> list[Path]:
    """Return the files of the pools behind a path, in the order of their names: the file itself, or
    those of a folder that are JSONL. Raises DatasetError if a folder has none."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.name.endswith(_POOLS) and each.is_file())
    if not files:
        raise DatasetError(f"dataset.file: {path} is a folder without files of {_POOLS[0]}")
    return files


def read_pools(
    path: Path, part_of: Callable[[Iterator[tuple[int, bytes]]], Lines] = iter
) -> dict[str, list[PoolLine]]:
    """Return the lines of each pool, or a part of them. Raises DatasetError."""
    return {
        file.name: parse_pool(part_of(read_lines(file)), str(file)) for file in pool_files(path)
    }


def folder_of(path: Path) -> Path:
    """Return the folder from which the lines of a file, or of a folder's files, name others."""
    return path if path.is_dir() else path.parent


def sha256_of_files(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file or, of several, that of theirs in order."""
    if len(files) == 1:
        return sha256_of(files[0])
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()


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
