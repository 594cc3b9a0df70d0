"""profile_export.jsonl: what its lines are made of is kept while requests are sent, and the lines
are written afterwards.

A disk that fills up ends the file, not the run. A file that could not be written to its end is
removed: cut short it could be taken for the whole, and its space is what the results need.
"""

import hashlib
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

import numpy as np

from aiperf_svc.adapters.bus import decode
from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX, ManifestEntry
from aiperf_svc.core.batch_lines import line_count, lines_of
from aiperf_svc.core.jsonl_lines import LineRenderer
from aiperf_svc.protocol.messages import MetricBatch
from aiperf_svc.protocol.records import METRIC_DTYPE

LINES_AT_ONCE: Final = 1_024
"""2 MB without their gaps, which stay in a cache until they are written."""
_SIZE: Final = struct.Struct("<I")


class JsonlFile:
    """Takes batches up to a limit of lines."""

    def __init__(self, path: Path, renderer: LineRenderer, *, kept_in: Path, limit: int) -> None:
        """`kept_in` is a folder for what has come; nothing of it has a name there."""
        self._path = path
        self._renderer = renderer
        self._kept_in = kept_in
        self._left = limit
        self._limit = limit
        self._kept: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self._size = 0
        self.error = ""
        """Why there is no file; empty while it goes well."""

    def append(self, batch: bytes, lines: int) -> None:
        """Take an encoded MetricBatch with its details, of which so many lines are to be made."""
        if not lines or self._left <= 0 or self.error:
            return
        self._left -= lines
        try:
            if self._kept is None:
                self._kept_in.mkdir(parents=True, exist_ok=True)
                self._kept = TemporaryFile(dir=self._kept_in)  # noqa: SIM115  # until `close`
            self._kept.write(_SIZE.pack(len(batch)))
            self._kept.write(batch)
        except OSError as error:
            self._fail(self._kept_in, error)

    def write(self) -> None:
        """Write the file from what has been taken, which is then gone. In any thread; nothing may
        be appended from then on."""
        if self._kept is None:
            return
        part = self._path.with_name(self._path.name + TEMPORARY_SUFFIX)
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                self._write(file, self._kept)
            part.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self._fail(self._path, error)
        else:
            self.close()

    def close(self) -> None:
        """Forget what has been taken."""
        kept, self._kept = self._kept, None
        # What is still buffered cannot be written where the disk is full.
        with suppress(OSError):
            if kept is not None:
                kept.close()

    def entry(self) -> ManifestEntry:
        """What a manifest says of the file that has been written."""
        return ManifestEntry(self._path.name, self._size, self._hash.hexdigest())

    def _write(self, file: IO[bytes], kept: IO[bytes]) -> None:
        left = self._limit
        with ThreadPoolExecutor(1) as beside:
            put: Future[None] | None = None
            for batches, lines in _groups(kept):
                text = lines_of(batches, self._renderer, most=left)
                left -= lines
                if put is not None:
                    put.result()
                put = beside.submit(self._put, file, text)
            if put is not None:
                put.result()

    def _put(self, file: IO[bytes], text: bytes) -> None:
        self._size += file.write(text)
        self._hash.update(text)

    def _fail(self, path: Path, error: OSError) -> None:
        self.close()
        self.error = (
            f"cannot write {path}: {error.strerror}; free some space, then "
            "`aiperf-svc export` makes profile_export_all.jsonl from records.parquet"
        )


def _groups(kept: IO[bytes]) -> Iterator[tuple[list[MetricBatch], int]]:
    """What has been kept, so many batches at a time that they have about LINES_AT_ONCE; and how
    many they have."""
    group: list[MetricBatch] = []
    lines = 0
    kept.seek(0)
    while size := kept.read(_SIZE.size):
        batch = decode(kept.read(*_SIZE.unpack(size)))
        if isinstance(batch, MetricBatch):
            group.append(batch)
            lines += line_count(np.frombuffer(batch.rows, dtype=METRIC_DTYPE))
        if lines >= LINES_AT_ONCE:
            yield group, lines
            group, lines = [], 0
    if group:
        yield group, lines
