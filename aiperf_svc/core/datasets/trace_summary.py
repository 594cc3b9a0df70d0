"""Describes a trace: its rate, its lengths, and the share of its prompts that a cache could hold.

Rows are processed one by one and not kept. Only the lengths of each request, for exact percentiles,
and a number for each distinct prefix remain.
"""

import math
from array import array
from collections.abc import Iterable

import msgspec
import numpy as np

from aiperf_svc.core.datasets.traces import TraceRow, has_tokens
from aiperf_svc.core.stats.percentiles import quantile

_PARTS = 128
"""Maximum intervals in which arrivals are counted."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the tokens of requests."""

    avg: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float


class Arrivals(msgspec.Struct, frozen=True):
    """The number of arrivals in equal parts of the time."""

    part_s: float
    counts: list[int]


class TraceSummary(msgspec.Struct, kw_only=True):
    """The description of a trace. A value that its rows do not determine is None."""

    requests: int
    left_out: int
    duration_s: float | None = None
    """Time from the first to the last arrival."""
    rate: float | None = None
    peak_rate: float | None = None
    gap_variation: float | None = None
    """Standard deviation of the gaps over their mean."""
    arrivals: Arrivals | None = None
    input_tokens: Lengths | None
    output_tokens: Lengths | None
    blocks: int | None = None
    distinct_blocks: int | None = None
    prefix_reuse: float | None = None
    """Share of the input tokens whose whole prefix occurred before."""


def summarise_trace(
    rows: Iterable[TraceRow], *, block_size: int, units_per_second: float
) -> TraceSummary:
    inputs, outputs = array("q"), array("q")
    times, prefixes = _Times(units_per_second), _Prefixes(block_size)
    requests = left_out = 0
    for row in rows:
        if not has_tokens(row):
            left_out += 1
            continue
        requests += 1
        if row.timestamp is not None:
            times.add(row.timestamp)
        if row.written is None:
            inputs.append(row.input_length)
            prefixes.add(row)
        if row.output_length is not None:
            outputs.append(row.output_length)
    summary = TraceSummary(
        requests=requests,
        left_out=left_out,
        input_tokens=_lengths(inputs),
        output_tokens=_lengths(outputs),
    )
    times.fill(summary)
    prefixes.fill(summary, sum(inputs))
    return summary


class _Times:
    """The arrivals, in order."""

    def __init__(self, units_per_second: float) -> None:
        self._unit = units_per_second
        self._first: float | None = None
        self._last = 0.0
        self._count = 0
        self._squares = 0.0
        self._second = 0
        self._in_second = 0
        self._peak = 0
        self._parts = _Parts()

    def add(self, timestamp: float) -> None:
        now = timestamp / self._unit
        if self._first is None:
            self._first = self._last = now
        self._squares += (now - self._last) ** 2
        self._last = now
        self._count += 1
        second = math.floor(now - self._first)
        self._in_second = self._in_second + 1 if second == self._second else 1
        self._second = second
        self._peak = max(self._peak, self._in_second)
        self._parts.add(now - self._first)

    def fill(self, summary: TraceSummary) -> None:
        duration = self._last - self._first if self._first is not None else 0.0
        gaps = self._count - 1
        if duration <= 0:
            return
        mean = duration / gaps
        variance = max(0.0, self._squares / gaps - mean**2)
        summary.duration_s, summary.rate = duration, gaps / duration
        summary.peak_rate = float(self._peak)
        summary.gap_variation = math.sqrt(variance) / mean
        summary.arrivals = self._parts.arrivals


class _Parts:
    """The arrivals in equal intervals, whose length doubles as the trace continues."""

    def __init__(self) -> None:
        self._part_s = 0.001
        self._counts = [0] * _PARTS

    def add(self, since_s: float) -> None:
        while since_s >= self._part_s * _PARTS:
            pairs = zip(self._counts[::2], self._counts[1::2], strict=True)
            self._counts = [one + other for one, other in pairs] + [0] * (_PARTS // 2)
            self._part_s *= 2
        self._counts[int(since_s / self._part_s)] += 1

    @property
    def arrivals(self) -> Arrivals:
        used = max((index for index, count in enumerate(self._counts) if count), default=0)
        return Arrivals(self._part_s, self._counts[: used + 1])


class _Prefixes:
    """The prefixes seen so far. A hash over the ids of its blocks identifies a prefix."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._seen: set[int] = set()
        self._blocks = 0
        self._reused_tokens = 0

    def add(self, row: TraceRow) -> None:
        prefix, reused = 0, 0
        for hash_id in row.hash_ids:
            prefix = hash((prefix, hash_id))
            if prefix in self._seen:
                reused += 1
            else:
                self._seen.add(prefix)
        self._blocks += len(row.hash_ids)
        self._reused_tokens += min(reused * self._block_size, row.input_length)

    def fill(self, summary: TraceSummary, input_tokens: int) -> None:
        if self._blocks:
            summary.blocks, summary.distinct_blocks = self._blocks, len(self._seen)
            summary.prefix_reuse = self._reused_tokens / input_tokens


def _lengths(values: "array[int]") -> Lengths | None:
    if not values:
        return None
    ordered = np.sort(np.frombuffer(values, dtype=np.int64)).astype(np.float64)
    return Lengths(
        avg=float(ordered.mean()),
        min=float(ordered[0]),
        p50=quantile(ordered, 0.5) or 0.0,
        p90=quantile(ordered, 0.9) or 0.0,
        p99=quantile(ordered, 0.99) or 0.0,
        max=float(ordered[-1]),
    )
