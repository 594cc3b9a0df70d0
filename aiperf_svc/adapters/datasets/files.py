"""Reads dataset files, plain or gzip, as numbered lines or list elements for `core.datasets`."""

import gzip
import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from aiperf_svc.config.user_files import open_file
from aiperf_svc.core.datasets.base import Lines
from aiperf_svc.core.datasets.random_pool import PoolLine, parse_pool
from aiperf_svc.core.datasets.sharegpt import list_elements
from aiperf_svc.core.datasets.trace_index import Line
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.number_text import size_text

_GZIP_MAGIC = b"\x1f\x8b"
_POOLS = (".jsonl", ".jsonl.gz")
MAX_LINE_LENGTH = 2**28
"""Maximum number of bytes in a line."""
MAX_HELD_BYTES = 2**31
"""Maximum uncompressed size of a file whose prompts are all kept in memory."""
_WATCHED_BYTES = 2**22
Until = Callable[[], bool]
Watch = Callable[[float], None]
"""Function that is called repeatedly with the share of a file that has been read, up to 1."""


def unwatched(share: float) -> None:
    """Ignore the progress."""


def read_lines(path: Path, watch: Watch = unwatched) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers, from 1, and lines. Raises DatasetError if the file cannot be read or has
    a line over `MAX_LINE_LENGTH`, because lines are read as a whole."""
    with _translated(path), _opened(path) as (stream, share):
        lines = iter(partial(stream.readline, MAX_LINE_LENGTH + 1), b"")
        unseen = 0
        for number, line in enumerate(lines, start=1):
            unseen += len(line)
            if unseen > _WATCHED_BYTES:
                unseen = 0
                watch(share())
            if len(line) > MAX_LINE_LENGTH:
                maximum = size_text(MAX_LINE_LENGTH)
                raise DatasetError(
                    f"{path}:{number}: a line of over {maximum}; expected shorter lines"
                )
            yield number, line


def read_whole(path: Path) -> bytes:
    """Return the uncompressed content of a file. Raises DatasetError as `read_lines`."""
    with _translated(path), _opened(path) as (stream, _):
        content = stream.read(MAX_LINE_LENGTH + 1)
    if len(content) > MAX_LINE_LENGTH:
        raise DatasetError(
            f"{path}: over {size_text(MAX_LINE_LENGTH)}; expected a smaller file for each session"
        )
    return content


def read_held_lines(path: Path, watch: Watch = unwatched) -> Iterator[tuple[int, bytes]]:
    """Yield as `read_lines`, for callers that keep all lines in memory. Also raises DatasetError if
    the lines exceed `MAX_HELD_BYTES`."""
    held = 0
    for number, line in read_lines(path, watch):
        held += len(line)
        if held > MAX_HELD_BYTES:
            raise _too_large(f"{path}:{number}")
        yield number, line


class LineFile:
    """An open file of lines, read in order and then by random access.

    The content of a compressed file is copied to a temporary file, because single lines of a
    compressed file cannot be read.
    """

    def __init__(
        self, path: Path, *, is_kept: bool, until: Until, watch: Watch = unwatched
    ) -> None:
        """Open the file. Without `is_kept` no line can be read again. Reading ends when `until`
        returns true. Raises DatasetError."""
        self._path = path
        self._until = until
        self._watch = watch
        with _translated(path):
            self._file = open_file(path)
            is_packed = _is_packed(self._file)
            # It stays open as long as this object exists.
            self._copy = TemporaryFile() if is_kept and is_packed else None  # noqa: SIM115
        self._stamp = self._stamp_now()
        self._number = self._position = self._size = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield line numbers and lines. Raises DatasetError as `read_lines`."""
        for number, content in read_lines(self._path, self._watch):
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
        """Return the last line that was yielded."""
        return Line(self._number, self._position, self._size)

    def reread(self, lines: Sequence[Line]) -> list[bytes]:
        """Read these lines. Raises DatasetError if the file has changed."""
        with _translated(self._path):
            if self._copy is not None:
                self._copy.flush()
            source = self._copy or self._file
            found = [os.pread(source.fileno(), line.size, line.position) for line in lines]
        if self._stamp_now() != self._stamp:
            raise DatasetError(
                f"dataset.file: {self._path} was changed during the run, which reads it; "
                "do not change it until the run has ended"
            )
        return found

    def close(self) -> None:
        self._file.close()
        if self._copy is not None:
            self._copy.close()

    def _stamp_now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


def read_list(path: Path, watch: Watch = unwatched) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of a JSON list and the numbers of their first lines, without reading the
    whole list at once. Raises DatasetError if the file cannot be read, is not a list, or exceeds
    `MAX_HELD_BYTES`."""
    with _translated(path), _opened(path) as (stream, share):
        contents = _contents(path, stream, lambda: watch(share()))
        seen = unseen = 0
        for line, element in list_elements(contents, str(path)):
            seen += len(element)
            unseen += len(element)
            if unseen > _WATCHED_BYTES:
                unseen = 0
                watch(seen / len(contents))
            if seen > MAX_HELD_BYTES:
                raise _too_large(f"{path}:{line}")
            yield line, element


def is_packed(path: Path) -> bool:
    """Return whether a file is compressed. Raises DatasetError if it cannot be read."""
    with _translated(path), open_file(path) as stream:
        return _is_packed(stream)


def pool_files(path: Path) -> list[Path]:
    """Return the pool files of a path, sorted by name: the file itself, or the JSONL files of a
    folder. Raises DatasetError if a folder has none."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.name.endswith(_POOLS) and each.is_file())
    if not files:
        raise DatasetError(f"dataset.file: {path} is a folder without files of {_POOLS[0]}")
    return files


def read_pools(
    path: Path,
    part_of: Callable[[Iterator[tuple[int, bytes]]], Lines] = iter,
    watch: Watch = unwatched,
) -> dict[str, list[PoolLine]]:
    """Return the lines of each pool, or a part of them. Raises DatasetError."""
    return {
        file.name: parse_pool(part_of(read_held_lines(file, watch)), str(file))
        for file in pool_files(path)
    }


def folder_of(path: Path) -> Path:
    """Return the folder to which paths in a file, or in a folder's files, are relative."""
    return path if path.is_dir() else path.parent


def sha256_of_files(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file; for several files, the SHA-256 of their digests in order."""
    if len(files) == 1:
        return sha256_of(files[0])
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the file on disk. Raises DatasetError if it cannot be read."""
    with _translated(path), open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    """Open a plain or gzip file. Yields its content and a function that returns the share read."""
    with open_file(path) as stream:
        size = max(1, os.fstat(stream.fileno()).st_size)

        def share() -> float:
            return min(1.0, stream.tell() / size)

        if _is_packed(stream):
            with gzip.open(stream) as unpacked:
                yield unpacked, share  # type: ignore[misc]
        else:
            yield stream, share


def _is_packed(stream: BufferedReader) -> bool:
    first = stream.read(len(_GZIP_MAGIC))
    stream.seek(0)
    return first == _GZIP_MAGIC


def _too_large(place: str) -> DatasetError:
    return DatasetError(
        f"{place}: over {size_text(MAX_HELD_BYTES)} up to here, the limit for prompts in memory; "
        "set the number of prompts with dataset.entries (--num-prompts), or give a smaller file"
    )


def _contents(path: Path, stream: BinaryIO, watch: Callable[[], None]) -> Any:
    """Return a memory map of a plain file, or the bytes of a compressed or empty one. A map is
    freed with its last reader and cannot be closed earlier, because an exception may still hold
    views of it in its frames.
    """
    if isinstance(stream, gzip.GzipFile):
        parts, size = [], 0
        while part := stream.read(_WATCHED_BYTES):
            parts.append(part)
            size += len(part)
            if size > MAX_HELD_BYTES:
                raise _too_large(str(path))
            watch()
        return b"".join(parts)
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
