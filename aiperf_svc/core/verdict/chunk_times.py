"""Bounds of the times between the chunks of a stream.

Chunks that one read returned share a timestamp: the gap between them is measured as zero, and the
gap before them as too long. Two cases look the same in the gaps. A late client merges chunks that
arrived separately; a server or a proxy may put several into one segment. The time without a poll
before such a read distinguishes them and bounds the error.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.stats.columns import Chunk, PhaseRows
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.percentiles import quantile
from aiperf_svc.core.verdict.inputs import TAILS, GapBound, SingleReads, median_and_tail, ordered
from aiperf_svc.domain import metric_formulas as f
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.metric_formulas import Columns, Floats, Formula

US_PER_MS = 1e3
UNWATCHED_QUANTILE = 0.9
"""Quantile of the times between two polls before a merged read. The error of the gaps' percentiles
is assumed to be at most this time."""


def single_reads(rows: PhaseRows) -> SingleReads:
    """Count streams of several tokens among the completed requests, and those received in one
    read."""
    streams = in_one_read = 0
    for chunk in rows.chunks(Population.COMPLETED):
        is_stream = _has_gaps(chunk)
        streams += int(np.count_nonzero(is_stream))
        is_one = is_stream & (chunk["first_token_wall_ns"] == chunk["last_token_wall_ns"])
        in_one_read += int(np.count_nonzero(is_one))
    return SingleReads(streams, in_one_read)


def gap_bounds(rows: PhaseRows, gaps: Histogram | None) -> tuple[GapBound, ...]:
    """Return bounds of the median and of a high percentile.

    For the time to the second token this is p99, since its bounds are known for each request. For
    the gaps it is p90, because their bounds are common to all of them: one merged chunk in a
    hundred would widen the bounds of p99 to the longest gap.
    """
    return _second_token(rows) + (_between_chunks(rows, gaps) if gaps is not None else ())


def blank_bounds(rows: PhaseRows) -> tuple[GapBound, ...]:
    """Return bounds of the time to first token if a delta with an empty text preceded it and the
    server's counts do not show whether that was a token."""

    def lowest(chunk: Columns) -> Floats:
        return f.time_to_first_token(chunk) - chunk["blank_lead_us"] / US_PER_MS

    return tuple(
        GapBound("time_to_first_token", stat, at, lowest_ms, at, mean)
        for stat, at, lowest_ms, mean in _with_bound(rows, f.time_to_first_token, lowest)
    )


def _has_gaps(chunk: Chunk) -> NDArray[np.bool_]:
    several: NDArray[np.bool_] = (chunk["chunks"] >= 2) | (f.streamed_tokens(chunk) >= 2)
    several &= chunk["is_streamed"] & (chunk["first_token_wall_ns"] != 0)
    return several


def _second_token(rows: PhaseRows) -> tuple[GapBound, ...]:
    """Return bounds of the time to the second token. The first token may have arrived before its
    timestamp, by its own uncertainty; the uncertainty of the second one is not recorded."""
    open_ms = f.duration_of("ttft_uncertainty_ns")

    def highest(chunk: Columns) -> Floats:
        return f.time_to_second_token(chunk) + open_ms(chunk)

    return tuple(
        GapBound("time_to_second_token", stat, at, at, highest_ms, mean)
        for stat, at, highest_ms, mean in _with_bound(rows, f.time_to_second_token, highest)
    )


def _with_bound(
    rows: PhaseRows, formula: Formula, bound: Formula
) -> Iterator[tuple[str, float, float, float]]:
    """Yield the statistic, its value by the formula, its bound, and the mean by the formula, in
    ms, of completed requests."""
    measured, bounded = ordered(rows, formula), ordered(rows, bound)
    for stat, q in median_and_tail(len(measured), TAILS):
        at, end = quantile(measured, q), quantile(bounded, q)
        assert at is not None
        assert end is not None
        yield stat, at, end, float(measured.mean())


def _between_chunks(rows: PhaseRows, gaps: Histogram) -> tuple[GapBound, ...]:
    """Return bounds of the gaps. A share z of the gaps is zero. Each of those is too short, and the
    gap before it may be too long, so the true quantile q lies between the measured quantiles q - z
    and q + z. Its distance is also at most the time in which the client had not polled."""
    if not gaps.zeros:
        return ()
    merged, unwatched_ms = gaps.zeros / gaps.total, _unwatched_ms(rows)
    found = []
    for stat, q in median_and_tail(gaps.total, TAILS[1:]):
        at, low, high = (
            gaps.percentile(min(1.0, max(0.0, place))) / f.NS_PER_MS
            for place in (q, q - merged, q + merged)
        )
        low, high = max(low, at - unwatched_ms), min(high, at + unwatched_ms)
        mean = gaps.sum_ns / gaps.total / f.NS_PER_MS
        found.append(GapBound("inter_chunk_latency", stat, at, low, high, mean))
    return tuple(found)


def _unwatched_ms(rows: PhaseRows) -> float:
    """Return the time without a poll before merged reads. It is recorded for the first and the last
    token of each stream."""
    longest = 0.0
    for column in ("ttft_uncertainty_ns", "last_uncertainty_ns"):
        values = rows.collect(f.duration_of(column), Population.COMPLETED)
        values = values[values > 0]
        values.sort()
        if len(values):
            longest = max(longest, quantile(values, UNWATCHED_QUANTILE) or 0.0)
    return longest or math.inf
