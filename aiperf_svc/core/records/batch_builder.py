"""Builds the messages of a record processor from finished requests: rows, histograms, errors,
sequence numbers.

Everything here is vectorised over many requests, one column at a time. The cost of a step hardly
grows with the number of requests, so requests of several batches are processed together.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.lines.batches import gap_counts
from aiperf_svc.core.lines.http_trace import Chunks
from aiperf_svc.core.lines.renderer import GAPS_TAG
from aiperf_svc.core.records.response_cache import put_on_the_wall_clock
from aiperf_svc.core.records.rows import ResponseColumns, metric_rows, set_tokens
from aiperf_svc.core.responses.reader import ResponseReader
from aiperf_svc.core.stats.histogram import delta_of
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.records import ErrorSample, LineDetails, SequenceSpan
from aiperf_svc.protocol.messages.reports import HistogramDelta
from aiperf_svc.protocol.records import FRAGMENT_DTYPE, READ_DTYPE, Flag, Rows


class MetricParts(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one MetricBatch without the header, and with the rows as an array."""

    rows: Rows
    details: LineDetails | None = None
    histograms: tuple[HistogramDelta, ...] = ()
    errors: tuple[ErrorSample, ...] = ()
    spans: tuple[SequenceSpan, ...] = ()
    lost: tuple[SequenceSpan, ...] = ()


class FinishedRequests:
    """Finished requests of one worker, in the order of their ends."""

    __slots__ = (
        "columns",
        "epoch",
        "fragments",
        "known",
        "known_reads",
        "lost",
        "rank",
        "readers",
        "traces",
        "worker_id",
    )

    def __init__(self, worker_id: str, epoch: int, rank: int) -> None:
        self.worker_id = worker_id
        self.epoch = epoch
        self.rank = rank
        self.fragments: list[bytes] = []
        """Last fragments: FRAGMENT_DTYPE rows of each batch."""
        self.readers: list[ResponseReader] = []
        self.columns: list[ResponseColumns] = []
        """Columns for `metric_rows`, of each batch."""
        self.known: list[NDArray[np.int64]] = []
        """Indexes of the cached responses, whose readers and columns have no times of their own:
        ascending, for each batch."""
        self.known_reads: list[bytes] = []
        """The only read of each cached response: READ_DTYPE rows for each batch."""
        self.traces: list[Chunks] = []
        """Reads of each response, if HTTP traces are exported."""
        self.lost: list[Rows] = []
        """Numbers of finished requests whose first fragments are missing."""

    def __len__(self) -> int:
        return len(self.readers)

    def __bool__(self) -> bool:
        """Return whether there is anything to send."""
        return bool(self.readers or self.lost)

    def add_batch(
        self,
        fragments: bytes,
        readers: NDArray[np.object_],
        columns: ResponseColumns,
        is_known: NDArray[np.bool_],
        known_reads: bytes,
    ) -> None:
        """Add the requests that end in the next batch."""
        self.fragments.append(fragments)
        self.known.append(len(self.readers) + np.flatnonzero(is_known))
        self.readers += readers.tolist()
        self.columns.append(columns)
        self.known_reads.append(known_reads)

    def add(self, later: "FinishedRequests") -> None:
        """Add requests of the same worker from its next batch."""
        before = len(self.readers)
        self.known += [before + places for places in later.known]
        self.fragments += later.fragments
        self.readers += later.readers
        self.columns += later.columns
        self.known_reads += later.known_reads
        self.traces += later.traces
        self.lost += later.lost


def parts_of(
    finished: FinishedRequests, counter: TokenCounter | None, *, wants_lines: bool, singly: bool
) -> list[MetricParts]:
    """Return the parts of one message or, with `singly`, of one message per request; empty if there
    is nothing to send.

    With a `counter`, it counts the output tokens; otherwise they come from the server's usage.
    """
    if not finished:
        return []
    rows = _rows(finished, counter)
    counts, gaps_ns = _gaps(rows, finished.readers)
    groups, gaps_of = [slice(0, len(rows))], [gaps_ns]
    if singly and len(rows):
        groups = [slice(i, i + 1) for i in range(len(rows))]
        gaps_of = np.split(gaps_ns, counts.cumsum()[:-1])
    made = [
        MetricParts(
            rows=rows[group],
            details=_details(
                rows[group], its_gaps_ns, finished.readers[group], finished.traces[group]
            )
            if wants_lines
            else None,
            histograms=_histograms(rows[group], counts[group], its_gaps_ns),
            errors=_errors(rows[group], finished.readers[group]),
            spans=_spans(finished, rows["seq"][group]),
        )
        for group, its_gaps_ns in zip(groups, gaps_of, strict=True)
    ]
    if finished.lost:
        lost = _spans(finished, np.concatenate(finished.lost))
        made[0] = msgspec.structs.replace(made[0], lost=lost)
    return made


def _rows(finished: FinishedRequests, counter: TokenCounter | None) -> Rows:
    fragments = np.frombuffer(b"".join(finished.fragments), dtype=FRAGMENT_DTYPE)
    rows = metric_rows(fragments, np.concatenate(finished.columns), finished.rank)
    came = np.frombuffer(b"".join(finished.known_reads), dtype=READ_DTYPE)
    if len(came) == len(rows):
        put_on_the_wall_clock(rows, came)
    elif len(came):
        places = np.concatenate(finished.known)
        known = rows[places]
        put_on_the_wall_clock(known, came)
        rows[places] = known
    set_tokens(rows, finished.readers, counter)
    return rows


def _spans(finished: FinishedRequests, numbers: Rows) -> tuple[SequenceSpan, ...]:
    """Return ascending sequence numbers as spans without holes."""
    if not len(numbers):
        return ()
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate(([0], breaks + 1))].tolist()
    lasts = numbers[np.concatenate((breaks, [len(numbers) - 1]))].tolist()
    return tuple(
        SequenceSpan(finished.worker_id, finished.epoch, first, last)
        for first, last in zip(firsts, lasts, strict=True)
    )


def _gaps(
    rows: Rows, readers: Sequence[ResponseReader]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of gaps between content chunks of each row, and all gaps
    concatenated."""
    counts = gap_counts(rows)
    gaps = (np.asarray(readers[i].gaps_ns) for i in np.flatnonzero(counts).tolist())
    return counts, np.concatenate([np.empty(0, dtype=np.int64), *gaps])


def _details(
    rows: Rows,
    gaps_ns: NDArray[np.int64],
    readers: Sequence[ResponseReader],
    traces: Sequence[Chunks],
) -> LineDetails:
    messages = tuple(readers[i].message for i in np.flatnonzero(rows["error"]).tolist())
    if not traces:
        return LineDetails(gaps_ns.tobytes(), messages)
    return LineDetails(
        gaps_ns.tobytes(),
        messages,
        chunks=np.concatenate(traces).tobytes(),
        chunk_counts=np.array([len(each) for each in traces], dtype=np.int64).tobytes(),
    )


def _histograms(
    rows: Rows, counts: NDArray[np.int64], gaps_ns: NDArray[np.int64]
) -> tuple[HistogramDelta, ...]:
    """Return the pooled gaps of each phase, without those of clients that leave early."""
    is_abandoning = (rows["flags"] & np.uint16(Flag.ABANDONS)) != 0
    if is_abandoning.any():
        gaps_ns = gaps_ns[~np.repeat(is_abandoning, counts)]
        counts = np.where(is_abandoning, 0, counts)
    if not len(gaps_ns):
        return ()
    phases = np.repeat(rows["phase"], counts)
    return tuple(
        delta_of(gaps_ns[phases == phase], phase=Phase(phase), tag=GAPS_TAG)
        for phase in np.unique(phases).tolist()
    )


def _errors(rows: Rows, readers: Sequence[ResponseReader]) -> tuple[ErrorSample, ...]:
    """Return the errors by phase, kind, status and target, with the first message of each."""
    found: dict[tuple[int, int, int, int], list[Any]] = {}
    for i in np.flatnonzero(rows["error"]).tolist():
        phase, kind, status, target = rows[["phase", "error", "status", "target"]][i].item()
        key = (phase, kind, status, target)
        found.setdefault(key, [readers[i].message, 0])[1] += 1
    return tuple(
        ErrorSample(Phase(phase), kind, status, message, count, target)
        for (phase, kind, status, target), (message, count) in found.items()
    )
