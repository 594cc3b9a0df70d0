"""Computes how many requests were in flight, exactly, from their start and end times.

Starts and ends are sorted separately. The number in flight at a time is the number of starts so far
minus the number of ends. This takes two int64 columns (240 MB at 15 million requests) and one pass
in pieces.
"""

import itertools
import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]

_PIECE = 1 << 16


class ConcurrencyStats(msgspec.Struct, frozen=True):
    """Statistics of a level over a window, weighted by the time at each level."""

    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float
    std: float


def held_over_time(
    starts: Times, ends: Times, *, begin_ns: int, stop_ns: int
) -> ConcurrencyStats | None:
    """Return statistics of the number of intervals `[start, end)` that are open at a time within
    `[begin_ns, stop_ns)`. Sorts both arrays in place. None for an empty window."""
    if stop_ns <= begin_ns:
        return None
    starts.sort()
    ends.sort()
    seconds = np.zeros(1, dtype=np.float64)  # time spent at each level
    # Pieces are cut at start times, so that each has at most `_PIECE` starts.
    cuts = [begin_ns, *(int(t) for t in starts[_PIECE::_PIECE] if begin_ns < t < stop_ns), stop_ns]
    for left, right in itertools.pairwise(cuts):
        seconds = _add(seconds, _levels(starts, ends, left, right))
    return _stats(seconds)


def _levels(starts: Times, ends: Times, left: int, right: int) -> NDArray[np.float64]:
    """Return the time at each level within [left, right)."""
    s0, s1 = np.searchsorted(starts, [left, right], side="right")
    e0, e1 = np.searchsorted(ends, [left, right], side="right")
    opened, closed = starts[s0:s1], ends[e0:e1]
    when = np.concatenate((opened, closed))
    steps = np.ones(len(when), dtype=np.int64)
    steps[len(opened) :] = -1
    # At the same instant, ends come before starts: a slot that is refilled at once counts once.
    order = np.lexsort((steps, when))
    levels = int(s0 - e0) + np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(steps[order])))
    edges = np.concatenate(([left], when[order], [right]))
    seconds = np.diff(edges) / 1e9
    return np.bincount(np.maximum(levels, 0), weights=seconds).astype(np.float64, copy=False)


def _add(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    size = max(len(one), len(other))
    return np.pad(one, (0, size - len(one))) + np.pad(other, (0, size - len(other)))


def _stats(seconds: NDArray[np.float64]) -> ConcurrencyStats:
    levels = np.arange(len(seconds), dtype=np.float64)
    total = float(seconds.sum())
    mean = float(seconds @ levels) / total
    spread = math.sqrt(max(0.0, float(seconds @ np.square(levels - mean)) / total))
    reached = np.cumsum(seconds) / total
    held = np.flatnonzero(seconds)

    def level(q: float) -> float:
        return float(min(np.searchsorted(reached, q * (1 - 1e-12)), held[-1]))

    return ConcurrencyStats(
        avg=mean,
        p50=level(0.50),
        p90=level(0.90),
        p95=level(0.95),
        p99=level(0.99),
        min=float(held[0]),
        max=float(held[-1]),
        std=spread,
    )
