"""profile_export.jsonl, written as the run goes; a disk that fills up ends the file, not the run.

A file that could not be written to its end is removed: cut short it could be taken for the whole,
and its space is what the results need. It is by far the longest of the results, so it can be hashed
while the last lines are still being made.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX, ManifestEntry

HASHED_AT_ONCE: Final = 8 * 2**20
"""Bytes: 30 ms."""


class JsonlFile:
    """Appends finished lines up to a limit, under a temporary name until `close`."""

    def __init__(self, path: Path, *, limit: int) -> None:
        self._path = path
        self._part = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._left = limit
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._written: BinaryIO | None = None
        self.is_closed = False
        self.error = ""
        """Why writing ended early; empty while it goes well."""

    def append(self, lines: bytes, count: int) -> None:
        """Take so many whole lines."""
        if not lines or self._left <= 0 or self.error:
            return
        if count > self._left:
            lines = b"".join(lines.splitlines(keepends=True)[: self._left])
        self._left -= count
        try:
            if self._file is None:
                self._part.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._part.open("wb")
            self._file.write(lines)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Give the file its name."""
        if self._file is not None:
            try:
                self._file.close()
                self._part.replace(self._path)
            except OSError as error:
                self._fail(error)
            self._file = None
        self.is_closed = True

    def hash_more(self) -> bool:
        """Hash some of what has been written since the last call; False when that was nothing. In
        any thread, but in one at a time. Raises OSError."""
        was_closed = self.is_closed
        if self._written is None:
            if self._file is None:
                return False
            self._written = self._part.open("rb", buffering=0)
        data = self._written.read(HASHED_AT_ONCE)
        if was_closed and not data:
            self._written.close()
            self._written = None
        self._hash.update(data)
        self._hashed += len(data)
        return bool(data)

    def entry(self) -> ManifestEntry:
        """What a manifest says of the file, when it is closed and `hash_more` has nothing
        more."""
        return ManifestEntry(self._path.name, self._hashed, self._hash.hexdigest())

    def _fail(self, error: OSError) -> None:
        self.error = (
            f"cannot write {self._path}: {error.strerror}; free some space, then "
            "`aiperf-svc export` makes it from records.parquet"
        )
        # What is still buffered cannot be written either.
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None
        with suppress(OSError):
            self._part.unlink(missing_ok=True)
