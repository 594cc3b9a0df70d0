"""Describes a trace: its rate, its lengths, and how much of its prompts a prefix cache could hold.

Rows are taken in one after the other and not kept. What stays is the lengths of each request, for
exact percentiles, and a number for each distinct prefix.
"""

import math
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from aiperf_svc.core.datasets.traces import TraceRow, has_tokens
from aiperf_svc.core.stats.percentiles import quantile

_PERCENTILES = (50, 90, 99)
_PARTS = 128
"""Parts of the time, at most, for which arrivals are counted."""


def summarise_trace(
    rows: Iterable[TraceRow], *, block_size: int, units_per_second: float
) -> dict[str, Any]:
    """Return the description of checked rows; what the rows do not tell is None."""
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
    return {
        "requests": requests,
        "left_out": left_out,
        **times.described(),
        "input_tokens": _lengths(inputs),
        "output_tokens": _lengths(outputs),
        **prefixes.described(sum(inputs)),
    }


class _Times:
    """The arrivals, which are in order."""

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

    def described(self) -> dict[str, Any]:
        """The time from the first to the last arrival, the rate, how the gaps spread, and the
        arrivals over time."""
        duration = self._last - self._first if self._first is not None else 0.0
        gaps = self._count - 1
        if duration <= 0:
            return dict.fromkeys(("duration_s", "rate", "peak_rate", "gap_variation", "arrivals"))
        mean = duration / gaps
        variance = max(0.0, self._squares / gaps - mean**2)
        return {
            "duration_s": duration,
            "rate": gaps / duration,
            "peak_rate": float(self._peak),
            "gap_variation": math.sqrt(variance) / mean,
            "arrivals": self._parts.described(),
        }


class _Parts:
    """The arrivals in equal parts of the time, whose length doubles when the trace goes on."""

    def __init__(self) -> None:
        self._part_s = 0.001
        self._counts = [0] * _PARTS

    def add(self, since_s: float) -> None:
        while since_s >= self._part_s * _PARTS:
            pairs = zip(self._counts[::2], self._counts[1::2], strict=True)
            self._counts = [one + other for one, other in pairs] + [0] * (_PARTS // 2)
            self._part_s *= 2
        self._counts[int(since_s / self._part_s)] += 1

    def described(self) -> dict[str, Any]:
        """The length of a part and the number of arrivals in each."""
        used = max((place for place, count in enumerate(self._counts) if count), default=0)
        return {"part_s": self._part_s, "counts": self._counts[: used + 1]}


class _Prefixes:
    """The prefixes that came before. A prefix is known by a hash over the ids of its blocks."""

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

    def described(self, input_tokens: int) -> dict[str, float | None]:
        """The blocks, and the share of the input tokens whose whole prefix came before."""
        if not self._blocks:
            return dict.fromkeys(("blocks", "distinct_blocks", "prefix_reuse"))
        return {
            "blocks": self._blocks,
            "distinct_blocks": len(self._seen),
            "prefix_reuse": self._reused_tokens / input_tokens,
        }


def _lengths(values: "array[int]") -> dict[str, float] | None:
    if not values:
        return None
    ordered = np.sort(np.frombuffer(values, dtype=np.int64)).astype(np.float64)
    percentiles = {f"p{each}": quantile(ordered, each / 100) or 0.0 for each in _PERCENTILES}
    ends = {"min": float(ordered[0]), **percentiles, "max": float(ordered[-1])}
    return {"avg": float(ordered.mean()), **ends}
