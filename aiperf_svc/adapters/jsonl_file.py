"""profile_export.jsonl, written as the run goes; a disk that fills up ends the file, not the run.

A file that could not be written to its end is removed: cut short it could be taken for the whole,
and its space is what the results need.
"""

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX


class JsonlFile:
    """Appends finished lines up to a limit, under a temporary name until `close`."""

    def __init__(self, path: Path, *, limit: int) -> None:
        self._path = path
        self._part = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._left = limit
        self._file: BinaryIO | None = None
        self.error = ""
        """Why writing ended early; empty while it goes well."""

    def append(self, lines: bytes) -> None:
        """Take whole lines."""
        if not lines or self._left <= 0 or self.error:
            return
        count = lines.count(b"\n")
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
        if self._file is None:
            return
        try:
            self._file.close()
            self._part.replace(self._path)
        except OSError as error:
            self._fail(error)
        self._file = None

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
