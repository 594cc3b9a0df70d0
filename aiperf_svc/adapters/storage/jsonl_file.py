"""Writes profile_export.jsonl: batches are stored while requests are sent, and rendered as lines
afterwards.

A full disk ends the file, not the run. An incomplete file is removed, because it could be mistaken
for a complete one and the results need its space.
"""

import hashlib
import logging
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from aiperf_svc.adapters.exports.manifest import ManifestEntry
from aiperf_svc.adapters.messaging.bus import decode
from aiperf_svc.adapters.storage.atomic_files import unwritable, write_atomically
from aiperf_svc.core.lines.batches import lines_of
from aiperf_svc.core.lines.renderer import LineRenderer
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.records import MetricBatch

LINES_AT_ONCE: Final = 1_024
"""Number of lines rendered at a time: 2 MB without their gaps, which a cache holds."""
_HEAD: Final = struct.Struct("<II")
"""Header of a stored batch: its size in bytes and its number of lines."""

log = logging.getLogger(__name__)


class JsonlFile:
    """Stores batches up to a limit of lines, then writes the lines."""

    def __init__(self, path: Path, renderer: LineRenderer, *, limit: int) -> None:
        self._path = path
        self._renderer = renderer
        self._left = limit
        self._limit = limit
        self._kept: IO[bytes] | None = None
        """The batches, in an unnamed file on the disk that will hold the lines."""
        self._hash = hashlib.sha256()
        self._size = 0
        self.error = ""
        """Reason why the file could not be written; empty if there is no error."""

    def append(self, batch: bytes, lines: int) -> None:
        """Store an encoded MetricBatch with details, for `lines` lines. Not after `write`."""
        if not lines or self._left <= 0 or self.error:
            return
        self._left -= lines
        try:
            if self._kept is None:
                folder = self._path.parent
                folder.mkdir(parents=True, exist_ok=True)
                self._kept = TemporaryFile(dir=folder)  # noqa: SIM115  # until `close`
            self._kept.write(_HEAD.pack(len(batch), lines))
            self._kept.write(batch)
        except OSError as error:
            self._fail(str(unwritable(self._path, error)))

    def write(self) -> None:
        """Write the file; once, in any thread. A failure is stored in `error`, because the other
        results do not depend on the file."""
        if self._kept is None:
            return
        kept = self._kept
        try:
            write_atomically(self._path, lambda part: self._write(part, kept))
        except EnvironmentProblem as problem:
            self._fail(str(problem))
        except Exception as error:
            log.exception("no %s", self._path.name)
            self._fail(f"cannot create {self._path}: {error!r}")
        self.close()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        # Buffered data cannot be written to a full disk.
        with suppress(OSError):
            if kept is not None:
                kept.close()

    def entry(self) -> ManifestEntry:
        return ManifestEntry(self._path.name, self._size, self._hash.hexdigest())

    def _write(self, part: Path, kept: IO[bytes]) -> None:
        left = self._limit
        with part.open("wb") as file, ThreadPoolExecutor(1) as writer:
            put: Future[None] | None = None
            for batches, lines in _groups(kept):
                text = lines_of(batches, self._renderer, most=left)
                left -= lines
                if put is not None:
                    put.result()
                put = writer.submit(self._put, file, text)
            if put is not None:
                put.result()

    def _put(self, file: IO[bytes], text: bytes) -> None:
        self._size += file.write(text)
        self._hash.update(text)

    def _fail(self, why: str) -> None:
        self.close()
        self.error = f"{why}; `aiperf-svc export` makes its lines from records.parquet"


def _groups(kept: IO[bytes]) -> Iterator[tuple[list[MetricBatch], int]]:
    """Yield groups of batches with about LINES_AT_ONCE lines each, and their number of lines."""
    group: list[MetricBatch] = []
    lines = 0
    kept.seek(0)
    while head := kept.read(_HEAD.size):
        size, its_lines = _HEAD.unpack(head)
        batch = decode(kept.read(size))
        assert isinstance(batch, MetricBatch)
        group.append(batch)
        lines += its_lines
        if lines >= LINES_AT_ONCE:
            yield group, lines
            group, lines = [], 0
    if group:
        yield group, lines
