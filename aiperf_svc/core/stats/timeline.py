"""The run over time in at most `MAX_BINS` equal bins, for plots.

Rates and the number in flight are exact. Percentiles of a bin come from logarithmic buckets of 2%,
a difference that is invisible in plots.
"""

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import Chunk, PhaseRows
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.metric_formulas import Floats
from aiperf_svc.domain.outcomes import Outcome

MAX_BINS, FEW_BINS = 120, 12
BIN_REQUESTS = 10
"""Mean requests per bin; with fewer, a plot shows noise. A short run has `FEW_BINS`."""
_WIDTHS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_GROWTH = math.log(1.02)
_SMALLEST_MS = 1e-3
_BUCKETS = 1200
"""Number of buckets: 1.02 ** 1200 x 1 us is 5.8 hours."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays with one value per bin; bin `i` is [i, i + 1) x width_s after the phase's start. The
    load ends within the last bin, whose rates and requests in flight are means over all of it."""

    width_s: float
    started_per_s: Floats
    completed_per_s: Floats
    errors_per_s: Floats
    """Requests per second that ended in an error, including timeouts."""
    in_flight: Floats
    latencies: dict[str, tuple[Floats, Floats]]
    """Metric tag to p50 and p99 in ms by time of start; NaN if no request started."""
    ramp_s: float
    stop_s: float | None
    """Time at which sending ended, if it ended by time."""


def bin_width_s(duration_s: float, requests: int, *, usual_s: float = 0.0) -> float:
    """Return the narrowest round width with at most `MAX_BINS` bins, or fewer with few requests. A
    bin is as long as the usual request, if that leaves `FEW_BINS`. Requests of a closed loop come
    in waves of that length, and narrower bins would show these."""
    max_bins = min(MAX_BINS, requests // BIN_REQUESTS)
    if usual_s:
        max_bins = min(max_bins, int(duration_s / usual_s))
    max_bins = max(FEW_BINS, max_bins)
    for width in _WIDTHS_S:
        if duration_s <= width * max_bins:
            return width
    return 3600.0 * math.ceil(duration_s / (3600.0 * max_bins))


def timeline(
    rows: PhaseRows,
    clocks: ClockMap,
    tags: tuple[str, ...],
    window: LoadWindow,
    *,
    usual_ms: float = 0.0,
) -> Timeline | None:
    """Bin the phase from its start to its last end; None if that takes no time. `usual_ms` is the
    median latency of a closed loop's requests."""
    if window.duration_ns <= 0:
        return None
    requests = sum(chunk.rows for chunk in rows.chunks())
    width_s = bin_width_s(window.duration_ns / 1e9, requests, usual_s=usual_ms / 1e3)
    width_ns = round(width_s * 1e9)
    bins = _Bins(window.begin_ns, width_ns, math.ceil(window.duration_ns / width_ns))
    started, completed, errors = bins.zeros(), bins.zeros(), bins.zeros()
    occupied = bins.zeros()
    buckets = {tag: np.zeros((bins.count, _BUCKETS), dtype=np.int64) for tag in tags}
    for chunk in rows.chunks():
        worker, outcome = chunk["worker"], chunk["outcome"]
        is_sent = chunk["start_wall_ns"] != 0
        end = clocks.to_timing(chunk["end_wall_ns"], worker)
        completed += bins.counts(end[outcome == Outcome.COMPLETED])
        errors += bins.counts(end[outcome == Outcome.ERRORED])
        if not is_sent.any():
            continue
        sent = chunk.where(is_sent)
        start = clocks.to_timing(sent["start_wall_ns"], sent["worker"])
        started += bins.counts(start)
        occupied += bins.occupied(start, end[is_sent])
        for tag in tags:
            _bucket(buckets[tag], tag, sent, bins.number(start))
    return Timeline(
        width_s=width_s,
        started_per_s=started / width_s,
        completed_per_s=completed / width_s,
        errors_per_s=errors / width_s,
        in_flight=occupied / width_ns,
        latencies={tag: (_level(b, 0.50), _level(b, 0.99)) for tag, b in buckets.items()},
        ramp_s=window.ramp_ns / 1e9,
        stop_s=(window.stop_ns - window.begin_ns) / 1e9 if window.stop_ns else None,
    )


class _Bins:
    def __init__(self, begin_ns: int, width_ns: int, count: int) -> None:
        self.begin_ns, self.width_ns, self.count = begin_ns, width_ns, count

    def zeros(self) -> Floats:
        return np.zeros(self.count, dtype=np.float64)

    def number(self, when: NDArray[Any]) -> NDArray[np.int64]:
        place: NDArray[np.int64] = (when - self.begin_ns) // self.width_ns
        return np.clip(place, 0, self.count - 1)

    def counts(self, when: NDArray[Any]) -> NDArray[np.int64]:
        return np.bincount(self.number(when), minlength=self.count)

    def occupied(self, start: NDArray[Any], end: NDArray[Any]) -> Floats:
        """Return the nanoseconds of [start, end) within each bin, summed over all intervals: the
        rest of the first bin after the start, the part of the last bin before the end, and whole
        bins between."""
        limit = self.begin_ns + self.count * self.width_ns
        start = np.clip(start, self.begin_ns, limit)
        end = np.clip(end, start, limit)
        first, last = self.number(start), self.number(end)
        after = self.begin_ns + (first + 1) * self.width_ns - start
        before = end - (self.begin_ns + last * self.width_ns)
        size = self.count + 1
        part = np.bincount(first, weights=after, minlength=size)
        part += np.bincount(last, weights=before, minlength=size)
        whole = np.bincount(first + 1, minlength=size) - np.bincount(last, minlength=size)
        total: Floats = part + np.cumsum(whole) * float(self.width_ns)
        return total[: self.count]


def _bucket(counts: NDArray[np.int64], tag: str, sent: Chunk, bins: NDArray[np.int64]) -> None:
    compute = CATALOG[tag].compute
    assert compute is not None
    values = compute(sent)
    # As in the results, the fast ones of clients that leave early would bias the percentiles.
    keep = (sent["outcome"] == Outcome.COMPLETED) & ~sent["is_abandoning"] & ~np.isnan(values)
    place = np.log(np.maximum(values[keep], _SMALLEST_MS) / _SMALLEST_MS) / _GROWTH
    key = bins[keep] * _BUCKETS + np.minimum(place.astype(np.int64), _BUCKETS - 1)
    counts += np.bincount(key, minlength=counts.size).reshape(counts.shape)


def _level(counts: NDArray[np.int64], q: float) -> Floats:
    """Return the quantile of each row of bucket counts, as the middle of its bucket."""
    reached = np.cumsum(counts, axis=1)
    total = reached[:, -1]
    place = np.argmax(reached >= np.maximum(np.ceil(total * q), 1)[:, None], axis=1)
    middle: Floats = _SMALLEST_MS * np.exp((place + 0.5) * _GROWTH)
    middle[total == 0] = np.nan
    return middle
