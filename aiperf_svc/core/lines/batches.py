"""Converts the batches of record processors to the lines of profile_export.jsonl, after the load.

A line is two kilobytes of text, ten times its content. Rendering during the load would take CPU
time from the measurement, and so would copies between processes. So batches are stored as they
arrive (`adapters/storage/jsonl_file`), and are rendered many at a time.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.lines.http_trace import Chunks, trace_data
from aiperf_svc.core.lines.number_text import DECIMAL, filled
from aiperf_svc.core.lines.renderer import LineRenderer, Source
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.records import LineDetails, MetricBatch
from aiperf_svc.protocol.records import METRIC_DTYPE, Rows

_NS_PER_MS: Final = 1e6


def gap_counts(rows: Rows) -> NDArray[np.int64]:
    """Return the number of gaps between content chunks of each row; only completed requests have
    any."""
    counts: NDArray[np.int64] = rows["chunks"].astype(np.int64) - 1
    counts[(rows["outcome"] != Outcome.COMPLETED) | (counts < 0)] = 0
    return counts


def line_count(rows: Rows) -> int:
    """Return the number of rows that get a line: those of the profiling phase."""
    return int(np.count_nonzero(rows["phase"] == Phase.PROFILING))


def lines_of(
    batches: Sequence[MetricBatch], renderer: LineRenderer, *, most: int | None = None
) -> bytes:
    """Return a line for each request of the profiling phase, at most `most`, in the order of the
    batches. Each batch has its details."""
    rows = np.frombuffer(b"".join(batch.rows for batch in batches), dtype=METRIC_DTYPE)
    details = [batch.details for batch in batches if batch.details is not None]
    messages = [message for each in details for message in each.messages]
    failed = np.cumsum(rows["error"] != 0) - 1
    gaps_ns = np.frombuffer(b"".join(each.gaps_ns for each in details), dtype=np.int64)
    gaps = _lists(gap_counts(rows), gaps_ns / _NS_PER_MS)
    sources = [Source(batch.spans[0].worker, batch.sender) for batch in batches]
    numbers = {source: number for number, source in enumerate(dict.fromkeys(sources))}
    sizes = [len(batch.rows) // METRIC_DTYPE.itemsize for batch in batches]
    whose = np.repeat([numbers[source] for source in sources], sizes)

    traces = _traces(details)
    places = np.flatnonzero(rows["phase"] == Phase.PROFILING)[:most]
    chosen = rows[places]
    return renderer.render(
        chosen,
        sources=list(numbers),
        whose=whose[places],
        gaps=[gaps[place] for place in places.tolist()],
        messages={i: messages[failed[places[i]]] for i in np.flatnonzero(chosen["error"]).tolist()},
        traces=[
            trace_data(rows, place, traces[place]) if traces else b"" for place in places.tolist()
        ],
    )


def _traces(details: Sequence[LineDetails]) -> list[Chunks]:
    """Return the reads of each row; empty without `--export-http-trace`."""
    if not all(each.chunk_counts for each in details):
        return []
    counts = np.frombuffer(b"".join(each.chunk_counts for each in details), dtype=np.int64)
    chunks = np.frombuffer(b"".join(each.chunks for each in details), dtype=np.int64)
    return np.split(chunks.reshape(-1, 2), counts.cumsum()[:-1])


def _lists(counts: NDArray[np.int64], numbers: NDArray[np.float64]) -> list[bytes]:
    """Return consecutive JSON lists of `counts` numbers each; empty for 0."""
    lists = [b""] * len(counts)
    if len(numbers):
        text = filled([b"", b","], DECIMAL, [numbers], len(numbers))
        ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord(","))
        has = np.flatnonzero(counts)
        last = ends[counts.cumsum()[has] - 1].tolist()
        for place, (before, end) in zip(has.tolist(), pairwise([-1, *last]), strict=True):
            lists[place] = b"[%b]" % text[before + 1 : end]
    return lists
