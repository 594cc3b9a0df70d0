"""Assembles the batches of workers into finished requests. This is the pure core of a record
processor.

A `RawBatch` contains fragments of requests: their fixed fields, the timestamps of their reads and
their raw bytes. Only the parsing of the bytes (`reader`) handles them one by one. Everything else
is vectorised over many records, one column at a time (`batch_builder`).

A batch that is sent again, after the loss of another processor, may contain records that the
manager already has. The manager can only drop complete messages, so each record of such a batch
becomes a separate message. Otherwise its chunk gaps would be counted twice.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.lines.http_trace import Chunks
from aiperf_svc.core.records.batch_builder import FinishedRequests, MetricParts, parts_of
from aiperf_svc.core.records.response_cache import ResponseCache
from aiperf_svc.core.records.rows import ResponseColumns, put_response, response_columns
from aiperf_svc.core.responses.read_times import ReadTimes, ends_of_reads
from aiperf_svc.core.responses.reader import ResponseReader
from aiperf_svc.core.responses.response_format import ResponseFormat
from aiperf_svc.protocol.messages.records import RawBatch
from aiperf_svc.protocol.records import FRAGMENT_DTYPE, READ_DTYPE, Flag, Rows

_NONE: Chunks = np.empty((0, 2), dtype=np.int64)


class OpenTraces:
    """The reads of all unfinished responses, for `--export-http-trace`. As in AIPerf, a trace only
    covers the bytes of the body: those of the status line and the headers are subtracted from the
    first reads."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, dict[int, tuple[int, Chunks]]]] = {}
        """Worker to its epoch and, by request, the bytes of its head and its reads."""

    def drop_worker(self, worker_id: str) -> None:
        """Drop the responses of a lost worker."""
        self._open.pop(worker_id, None)

    def take(self, batch: RawBatch, fragments: Rows, reads: Rows) -> list[Chunks]:
        """Record the reads of a batch. Return the chunks of each fragment that ends its request,
        and nothing for other fragments, in the order of the fragments."""
        epoch, known = self._open.get(batch.sender, (0, {}))
        if epoch != batch.epoch:
            known = {}
            self._open[batch.sender] = (batch.epoch, known)
        rows = np.column_stack(
            (reads["stamp_wall_ns"].astype(np.int64), reads["length"].astype(np.int64))
        )
        found, first = [], 0
        for request_id, part, count, head_bytes, flags in zip(
            *(
                fragments[name].tolist()
                for name in ("request_id", "part", "reads", "body_offset", "flags")
            ),
            strict=True,
        ):
            mine = rows[first : first + count]
            first += count
            head, earlier = head_bytes, _NONE
            if part:
                head, earlier = known.pop(request_id, (head_bytes, _NONE))
            mine = np.concatenate((earlier, mine)) if len(earlier) else mine
            if flags & Flag.FINAL:
                found.append(_body_reads(mine, head))
            else:
                known[request_id] = (head, mine)
                found.append(_NONE)
        return found


def _body_reads(reads: Chunks, head_bytes: int) -> Chunks:
    """Return the reads without the bytes of the head, and without reads that have no others."""
    ends = np.cumsum(reads[:, 1])
    is_of_body = ends > head_bytes
    kept = reads[is_of_body].copy()
    if len(kept):
        kept[0, 1] = ends[is_of_body][0] - head_bytes
    return kept


_FINAL: Final = int(Flag.FINAL)
_READ_FIELDS: Final = (
    "request_id",
    "part",
    "reads",
    "body",
    "message",
    "body_offset",
    "flags",
    "framing",
    "write_wall_ns",
    "outcome",
    "error",
    "status",
)
"""Fields of a fragment that are needed to parse its bytes."""
MAX_OPEN_BYTES: Final = 256 * 2**20
"""Maximum bytes of all unfinished responses together before the largest are dropped."""
LARGE_BYTES: Final = 4 * 2**20
"""Minimum size of a response that may be dropped: the gaps of a million chunks, or 60,000 tokens as
text. Thousands of such streams at once can be a valid load."""
CHECK_BYTES: Final = 128 * 2**20
"""Bytes of responses between two checks of the total."""


class RecordAssembler:
    """Assembles the records of all workers that send to one record processor."""

    def __init__(self, config: BenchmarkConfig, *, counter: TokenCounter | None = None) -> None:
        """Set up an assembler. With a `counter`, it counts the output tokens; otherwise they come
        from the server's usage."""
        self._format = ResponseFormat.of(config.endpoint, keeps_text=counter is not None)
        self._known = ResponseCache(self._format)
        self._counter = counter
        self._traces = OpenTraces() if config.artifacts.http_trace else None
        self._open: dict[str, tuple[int, dict[int, ResponseReader]]] = {}
        """Epoch and unfinished requests (by id) of each worker."""
        self._unchecked_bytes = 0
        """Bytes of responses since the last check of the total."""

    @property
    def unfinished(self) -> list[ResponseReader]:
        """Requests whose last fragment has not arrived."""
        return [reader for _, readers in self._open.values() for reader in readers.values()]

    def drop_worker(self, worker_id: str) -> int:
        """Drop the unfinished requests of a lost worker and return their number."""
        if self._traces is not None:
            self._traces.drop_worker(worker_id)
        _, readers = self._open.pop(worker_id, (0, {}))
        return len(readers)

    def process(
        self, batch: RawBatch, *, worker_rank: int, wants_lines: bool = True
    ) -> list[MetricParts]:
        """Return the records that end in `batch`.

        Raises ValueError for a batch whose parts do not fit together.
        """
        finished = self.parse(batch, worker_rank=worker_rank)
        return parts_of(finished, self._counter, wants_lines=wants_lines, singly=batch.is_resent)

    def parts(self, finished: FinishedRequests, *, wants_lines: bool) -> list[MetricParts]:
        """Return the parts of a message for parsed requests. None of them may come from a resent
        batch."""
        return parts_of(finished, self._counter, wants_lines=wants_lines, singly=False)

    def parse(self, batch: RawBatch, *, worker_rank: int) -> FinishedRequests:
        """Return the requests that end in `batch`.

        Raises ValueError for a batch whose parts do not fit together.
        """
        fragments = np.frombuffer(batch.fragments, dtype=FRAGMENT_DTYPE)
        reads = np.frombuffer(batch.reads, dtype=READ_DTYPE)
        _check(batch, fragments, reads)
        begins, first_reads = _begins(fragments)
        readers = np.full(len(fragments), None, dtype=np.object_)
        columns = response_columns(len(fragments))
        is_known = np.zeros(len(fragments), dtype=np.bool_)
        for places, response in self._known.find_all(batch.bodies, fragments, begins):
            is_known[places] = True
            columns[places] = response.columns
            readers[places] = response.reader
        finished = FinishedRequests(batch.sender, batch.epoch, worker_rank)
        traces = self._traces.take(batch, fragments, reads) if self._traces is not None else []
        if is_known.all():
            finished.add_batch(batch.fragments, readers, columns, is_known, batch.reads)
        else:
            lost = self._read(batch, fragments, reads, np.flatnonzero(~is_known), readers, columns)
            ended = np.flatnonzero(readers.astype(np.bool_))
            finished.add_batch(
                fragments[ended].tobytes(),
                readers[ended],
                columns[ended],
                is_known[ended],
                reads[first_reads[is_known]].tobytes(),
            )
            finished.lost += [fragments["seq"][lost]] if lost else []
            self._unchecked_bytes += len(batch.bodies)
            if self._unchecked_bytes > CHECK_BYTES:
                self._bound_open_bytes()
        if self._traces is not None:
            ended = np.flatnonzero(readers.astype(np.bool_))
            finished.traces += [traces[place] for place in ended.tolist()]
        return finished

    def _read(
        self,
        batch: RawBatch,
        all_fragments: Rows,
        reads: Rows,
        places: NDArray[np.int64],
        finished: NDArray[np.object_],
        columns: ResponseColumns,
    ) -> list[int]:
        """Read the fragments at these indexes. Readers of fragments that end a request are added to
        `finished`, and their results to `columns`. Returns the indexes of last fragments whose
        earlier ones are missing."""
        lost: list[int] = []
        is_open, bodies = self._readers_of(batch), batch.bodies
        begins, first_reads = _begins(all_fragments)
        counts = all_fragments["reads"]
        times = ReadTimes(reads, ends_of_reads(reads, counts, all_fragments["message"]), counts)
        lags = _receive_lags(reads, counts, first_reads)
        fragments = all_fragments[places] if len(places) < len(all_fragments) else all_fragments
        for (
            place,
            at,
            first,
            lag,
            request_id,
            part,
            count,
            size,
            message,
            body_offset,
            flags,
            framing,
            write,
            outcome,
            error,
            status,
        ) in zip(
            places.tolist(),
            begins[places].tolist(),
            first_reads[places].tolist(),
            lags[places].tolist(),
            *(fragments[name].tolist() for name in _READ_FIELDS),
            strict=True,
        ):
            stop = at + size
            reader: ResponseReader | None
            body_at = at
            if part == 0:
                reader = ResponseReader(self._format, write)
                if body_offset:
                    body_at = at + body_offset
                    reader.take_head(bodies[at:body_at], framing)
            else:
                reader = is_open.pop(request_id, None)
            if reader is not None and reader.next_part == part:
                reader.take(bodies, body_at, stop, times, first, count)
                reader.bytes_in += size
                if lag > reader.receive_lag_ns:
                    reader.receive_lag_ns = lag
                if flags & _FINAL:
                    text = bodies[stop : stop + message].decode("utf-8", "replace")
                    reader.finish(outcome, error, text, status)
                    finished[place] = reader
                    put_response(columns, place, reader)
                else:
                    reader.next_part = part + 1
                    is_open[request_id] = reader
            elif flags & _FINAL:
                lost.append(place)
        return lost

    def _bound_open_bytes(self) -> None:
        """Drop the largest unfinished responses if they exceed the limit together."""
        self._unchecked_bytes = 0
        readers = self.unfinished
        sizes = [reader.held_bytes for reader in readers]
        total = sum(sizes)
        for place in sorted(range(len(readers)), key=sizes.__getitem__, reverse=True):
            if total <= MAX_OPEN_BYTES or sizes[place] < LARGE_BYTES:
                return
            readers[place].give_up(
                f"not read to its end: {len(readers):,} unfinished responses held over "
                f"{MAX_OPEN_BYTES // 2**20} MiB in the record processor"
            )
            total -= sizes[place]

    def _readers_of(self, batch: RawBatch) -> dict[int, ResponseReader]:
        epoch, readers = self._open.get(batch.sender, (0, {}))
        if epoch != batch.epoch:
            readers = {}
            self._open[batch.sender] = (batch.epoch, readers)
        return readers


def _check(batch: RawBatch, fragments: Rows, reads: Rows) -> None:
    """Check that the lengths in the rows match the bytes; otherwise every record would be wrong."""
    body = int(fragments["body"].sum(dtype=np.int64))
    whole = body + int(fragments["message"].sum(dtype=np.int64))
    count = int(fragments["reads"].sum(dtype=np.int64))
    in_reads = int(reads["length"].sum(dtype=np.int64))
    if whole != len(batch.bodies) or count != len(reads) or in_reads != body:
        raise ValueError(
            f"batch {batch.number} of {batch.sender} does not fit together: {whole} of "
            f"{len(batch.bodies)} bytes, {count} of {len(reads)} reads, {in_reads} of {body} read"
        )


def _begins(fragments: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets of each fragment in the bodies, and in the reads."""
    sizes = fragments["body"].astype(np.int64) + fragments["message"]
    counts = fragments["reads"]
    return np.cumsum(sizes) - sizes, np.cumsum(counts, dtype=np.int64) - counts


def _receive_lags(
    reads: Rows, counts: NDArray[Any], first_reads: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the largest receive lag of each fragment; 0 if it has no reads."""
    lags = np.zeros(len(counts), dtype=np.int64)
    if len(reads):
        some = np.flatnonzero(counts)
        late = reads["read_wall_ns"] - reads["stamp_wall_ns"]
        lags[some] = np.maximum.reduceat(late, first_reads[some])
    return lags
