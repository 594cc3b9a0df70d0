"""From the batches of workers to metric rows: the pure heart of a record processor.

A `RawBatch` holds fragments of requests: their fixed fields, the stamps of their reads, their raw
bytes. Only the parsing of the bytes (`answer_reader`) goes through them one by one. Everything else
is done for all records of a batch at once, a column at a time.

A batch that is sent again, after another processor has died, may hold records that the manager
already has. The manager can only drop a message whole, so each record of such a batch becomes a
message of its own: its chunk gaps must not be counted twice.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.core.answer_reader import AnswerFormat, AnswerReader
from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.core.histogram import delta_of
from aiperf_svc.core.jsonl_lines import GAPS_TAG, LineRenderer
from aiperf_svc.core.known_answers import MAX_ANSWER, KnownAnswer, KnownAnswers, on_the_wall_clock
from aiperf_svc.core.read_times import ReadTimes, ends_of_reads
from aiperf_svc.core.request_metrics import answer_columns, metric_rows, set_tokens
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages import ErrorSample, HistogramDelta, RawBatch, SequenceSpan
from aiperf_svc.protocol.records import FRAGMENT_DTYPE, READ_DTYPE, Flag, Rows

_FINAL: Final = int(Flag.FINAL)
_COMPLETED: Final = int(Outcome.COMPLETED)


class MetricParts(msgspec.Struct, frozen=True, kw_only=True):
    """What one MetricBatch says; its fields but the header, with the rows as an array."""

    rows: Rows
    jsonl: bytes = b""
    histograms: tuple[HistogramDelta, ...] = ()
    errors: tuple[ErrorSample, ...] = ()
    spans: tuple[SequenceSpan, ...] = ()
    lost: tuple[SequenceSpan, ...] = ()


class _Finished(msgspec.Struct):
    """The requests that end in a batch, in order."""

    places: list[int]
    """Of their last fragments."""
    readers: list[AnswerReader]
    columns: list[bytes]
    """What `metric_rows` takes of each."""
    lost: list[int]
    """Places of last fragments whose earlier ones are unknown."""
    known: list[int]
    """Which of them are known answers, whose readers and columns have no times of their own."""
    known_reads: list[int]
    """The one read of each of those."""


class RecordAssembler:
    """Puts together the records of all workers that send to one record processor."""

    def __init__(
        self,
        config: BenchmarkConfig,
        *,
        run_id: str,
        processor_id: str,
        counter: TokenCounter | None = None,
    ) -> None:
        """With a `counter`, output tokens are counted by it, else taken from the server's usage."""
        self._format = AnswerFormat(
            ENDPOINTS[config.endpoint.type],
            is_streaming=config.endpoint.streaming,
            keeps_text=counter is not None,
        )
        self._known = KnownAnswers(self._format)
        self._counter = counter
        self._renderer = LineRenderer(
            run_id=run_id,
            processor_id=processor_id,
            has_warmup=config.load.warmup is not None,
        )
        self._open: dict[str, tuple[int, dict[int, AnswerReader]]] = {}
        """Worker id to its epoch and its unfinished requests by id."""

    @property
    def open_requests(self) -> int:
        """Requests of which some fragments have come, but not the last."""
        return sum(len(readers) for _, readers in self._open.values())

    @property
    def open_bytes(self) -> int:
        """Bytes of answers and times that those hold; for the vitals, it looks at each."""
        return sum(
            reader.held_bytes for _, readers in self._open.values() for reader in readers.values()
        )

    def drop_worker(self, worker_id: str) -> int:
        """Forget the unfinished requests of a lost worker; how many they were."""
        _, readers = self._open.pop(worker_id, (0, {}))
        return len(readers)

    def process(
        self, batch: RawBatch, *, worker_rank: int, wants_lines: bool = True
    ) -> list[MetricParts]:
        """The records that end in `batch`; nothing when none does.

        Raises ValueError for a batch whose parts do not fit together.
        """
        fragments = np.frombuffer(batch.fragments, dtype=FRAGMENT_DTYPE)
        reads = np.frombuffer(batch.reads, dtype=READ_DTYPE)
        _check(batch, fragments, reads)
        lags = _receive_lags(reads, fragments["reads"])
        finished = self._parse(batch, fragments, reads, lags)
        lost = _spans(batch, fragments["seq"][finished.lost])
        if not finished.places:
            return [MetricParts(rows=metric_rows(fragments[:0], [], 0), lost=lost)] if lost else []
        ended = fragments if len(finished.places) == len(fragments) else fragments[finished.places]
        rows = metric_rows(ended, finished.columns, worker_rank)
        if finished.known:
            came = reads[finished.known_reads]
            known = slice(None) if len(finished.known) == len(rows) else finished.known
            rows[known] = on_the_wall_clock(
                rows[known],
                polled_wall_ns=came["polled_wall_ns"],
                stamp_wall_ns=came["stamp_wall_ns"],
                lag=came["read_wall_ns"] - came["stamp_wall_ns"],
            )
        set_tokens(rows, finished.readers, self._counter)
        gaps = _gaps(rows, finished.readers)
        groups: Iterable[slice] = (slice(0, len(rows)),)
        if batch.is_resent:
            groups = (slice(i, i + 1) for i in range(len(rows)))
        made = [
            MetricParts(
                rows=rows[group],
                jsonl=self._lines(batch.sender, rows[group], finished.readers[group], gaps[group])
                if wants_lines
                else b"",
                histograms=_histograms(rows[group], gaps[group]),
                errors=_errors(rows[group], finished.readers[group]),
                spans=_spans(batch, rows["seq"][group]),
            )
            for group in groups
        ]
        if lost:
            made[0] = msgspec.structs.replace(made[0], lost=lost)
        return made

    # --- parsing ---------------------------------------------------------------------------------

    def _readers_of(self, batch: RawBatch) -> dict[int, AnswerReader]:
        epoch, readers = self._open.get(batch.sender, (0, {}))
        if epoch != batch.epoch:
            readers = {}
            self._open[batch.sender] = (batch.epoch, readers)
        return readers

    def _parse(
        self, batch: RawBatch, fragments: Rows, reads: Rows, lags: NDArray[np.int64]
    ) -> _Finished:
        is_open = self._readers_of(batch)
        counts, bodies = fragments["reads"], batch.bodies
        times = ReadTimes(reads, ends_of_reads(reads, counts, fragments["message"]))
        finished = _Finished([], [], [], [], [], [])
        known_answers = self._known
        known_answers.next_batch()
        at = first = 0
        for place, (
            request_id,
            part,
            count,
            size,
            message,
            body_offset,
            flags,
            framing,
            start,
            outcome,
            error,
            status,
            lag,
        ) in enumerate(
            zip(
                fragments["request_id"].tolist(),
                fragments["part"].tolist(),
                counts.tolist(),
                fragments["body"].tolist(),
                fragments["message"].tolist(),
                fragments["body_offset"].tolist(),
                fragments["flags"].tolist(),
                fragments["framing"].tolist(),
                fragments["start_wall_ns"].tolist(),
                fragments["outcome"].tolist(),
                fragments["error"].tolist(),
                fragments["status"].tolist(),
                lags.tolist(),
                strict=True,
            )
        ):
            stop = at + size
            reader: AnswerReader | None
            known: KnownAnswer | None = None
            if (
                count == 1
                and part == 0
                and flags & _FINAL
                and outcome == _COMPLETED
                and size <= MAX_ANSWER
            ):
                answer = bodies[at:stop]
                known = known_answers.find(answer, body_offset=body_offset, framing=framing)
            if known is not None:
                finished.known.append(len(finished.places))
                finished.known_reads.append(first)
                finished.places.append(place)
                finished.readers.append(known.reader)
                finished.columns.append(known.columns)
                at = stop + message
                first += 1
                continue
            if part == 0:
                reader = AnswerReader(self._format, start)
                body_at = at
                if body_offset:
                    body_at = at + body_offset
                    reader.take_head(bodies[at:body_at], framing)
            else:
                reader = is_open.pop(request_id, None)
                body_at = at
            if reader is not None and reader.next_part == part:
                reader.take(bodies, body_at, stop, times, first, count)
                reader.bytes_in += size
                if lag > reader.receive_lag_ns:
                    reader.receive_lag_ns = lag
                if flags & _FINAL:
                    text = bodies[stop : stop + message].decode("utf-8", "replace")
                    reader.finish(outcome, error, text, status)
                    finished.places.append(place)
                    finished.readers.append(reader)
                    finished.columns.append(answer_columns(reader))
                else:
                    reader.next_part = part + 1
                    is_open[request_id] = reader
            elif flags & _FINAL:
                finished.lost.append(place)
            at = stop + message
            first += count
        return finished

    # --- lines -----------------------------------------------------------------------------------

    def _lines(
        self,
        worker_id: str,
        rows: Rows,
        readers: Sequence[AnswerReader],
        gaps: Sequence[NDArray[np.int64] | None],
    ) -> bytes:
        """A line for each row of the profiling phase, nothing for the others."""
        chosen = np.flatnonzero(rows["phase"] == Phase.PROFILING).tolist()
        if not chosen:
            return b""
        return self._renderer.render(
            rows if len(chosen) == len(rows) else rows[chosen],
            worker_id=worker_id,
            gaps_ns=[gaps[i] for i in chosen],
            messages=[readers[i].message for i in chosen],
        )


def _check(batch: RawBatch, fragments: Rows, reads: Rows) -> None:
    """The lengths in the rows must be those of the bytes, or every record would be wrong."""
    body = int(fragments["body"].sum(dtype=np.int64))
    whole = body + int(fragments["message"].sum(dtype=np.int64))
    count = int(fragments["reads"].sum(dtype=np.int64))
    in_reads = int(reads["length"].sum(dtype=np.int64))
    if whole != len(batch.bodies) or count != len(reads) or in_reads != body:
        raise ValueError(
            f"batch {batch.number} of {batch.sender} does not fit together: {whole} of "
            f"{len(batch.bodies)} bytes, {count} of {len(reads)} reads, {in_reads} of {body} read"
        )


def _receive_lags(reads: Rows, counts: Rows) -> NDArray[np.int64]:
    """The largest receive lag of each fragment; 0 where it has no reads."""
    lags = np.zeros(len(counts), dtype=np.int64)
    if len(reads):
        some = np.flatnonzero(counts)
        firsts = (np.cumsum(counts, dtype=np.int64) - counts)[some]
        late = reads["read_wall_ns"] - reads["stamp_wall_ns"]
        lags[some] = np.maximum.reduceat(late, firsts)
    return lags


def _spans(batch: RawBatch, numbers: Any) -> tuple[SequenceSpan, ...]:
    """Ascending sequence numbers as spans without holes."""
    if not len(numbers):
        return ()
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate(([0], breaks + 1))].tolist()
    lasts = numbers[np.concatenate((breaks, [len(numbers) - 1]))].tolist()
    return tuple(
        SequenceSpan(batch.sender, batch.epoch, first, last)
        for first, last in zip(firsts, lasts, strict=True)
    )


def _gaps(rows: Rows, readers: Sequence[AnswerReader]) -> list[NDArray[np.int64] | None]:
    """Gaps between the content chunks of each completed request, None where there are none."""
    completed = (rows["outcome"] == Outcome.COMPLETED).tolist()
    gaps: list[NDArray[np.int64] | None] = [None] * len(readers)
    for i, reader in enumerate(readers):
        if completed[i] and len(reader.times_wall_ns) > 1:
            times: NDArray[np.int64] = np.frombuffer(reader.times_wall_ns, dtype=np.int64)
            gaps[i] = times[1:] - times[:-1]
    return gaps


def _histograms(rows: Rows, gaps: Sequence[NDArray[np.int64] | None]) -> tuple[HistogramDelta, ...]:
    """The pooled gaps, each phase by itself."""
    by_phase: dict[int, list[NDArray[np.int64]]] = {}
    if any(some is not None for some in gaps):
        for phase, some in zip(rows["phase"].tolist(), gaps, strict=True):
            if some is not None:
                by_phase.setdefault(phase, []).append(some)
    return tuple(
        delta_of(np.concatenate(parts), phase=Phase(phase), tag=GAPS_TAG)
        for phase, parts in by_phase.items()
    )


def _errors(rows: Rows, readers: Sequence[AnswerReader]) -> tuple[ErrorSample, ...]:
    """Errors by phase, kind and status, with the first message of each."""
    found: dict[tuple[int, int, int], list[Any]] = {}
    for i in np.flatnonzero(rows["error"]).tolist():
        key = (int(rows["phase"][i]), int(rows["error"][i]), int(rows["status"][i]))
        found.setdefault(key, [readers[i].message, 0])[1] += 1
    return tuple(
        ErrorSample(Phase(phase), kind, status, message, count)
        for (phase, kind, status), (message, count) in found.items()
    )
