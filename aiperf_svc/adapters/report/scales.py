"""Axes of the report's plots: map values to positions, and choose the labelled values."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aiperf_svc.domain.number_text import size_text


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a value to 0..1 along an axis."""

    place: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]
    """Values of the ticks and their labels."""


def linear(high: float, *, low: float = 0.0) -> Scale:
    """Return a scale from `low` to a round number at or above `high`, with about five ticks."""
    step = _round_step((high - low) / 4 or 1.0)
    count = max(1, math.ceil((high - low) / step - 1e-9))
    top = low + step * count
    ticks = tuple((low + step * i, short(low + step * i)) for i in range(count + 1))
    return Scale(lambda value: (value - low) / (top - low), ticks)


def elapsed(high: float) -> Scale:
    """Return a scale of seconds from 0 to exactly `high`."""
    step = _round_step(high / 6)
    ticks = tuple((step * i, f"{short(step * i)} s") for i in range(int(high / step + 1e-9) + 1))
    return Scale(lambda value: value / high, ticks)


def logarithmic(low: float, high: float) -> Scale:
    """Return a scale from below `low` to above `high`, with ticks at 1, 2 and 5 of each decade if
    there are few decades."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    values = [m * 10.0**e for e in range(first, last + 1) for m in steps]
    bottom = max((v for v in values if v <= low), default=values[0])
    top = min((v for v in values if v >= high), default=values[-1])
    if top <= bottom:
        top = bottom * 10
    span = math.log10(top / bottom)
    ticks = tuple((v, short(v)) for v in values if bottom <= v <= top)
    return Scale(lambda value: math.log10(value / bottom) / span, ticks)


LARGE_RATIO = 20
"""Ratio of largest to smallest value from which an axis is logarithmic."""
_MIN_GAP = 0.06
"""Space that a label of `listed` needs, as a share of the axis."""


def is_wide(values: Sequence[float]) -> bool:
    """Return whether the values need a logarithmic axis."""
    return min(values) > 0 and max(values) >= LARGE_RATIO * min(values)


def fitting(values: Sequence[float], *, is_log: bool = False) -> Scale:
    """Return a scale for measured values: logarithmic, or linear including 0."""
    if is_log:
        return logarithmic(min(values), max(values))
    return linear(max((*values, 0.0)) or 1.0, low=min((*values, 0.0)))


def listed(values: Sequence[float]) -> Scale:
    """Return a scale for the values of a parameter, with ticks at the values if there is room."""
    low, high = min(values), max(values)
    warp = math.log if is_wide(values) else float
    span = warp(high) - warp(low)

    def place(value: float) -> float:
        # Keep the outermost values away from the frame.
        return 0.03 + 0.94 * ((warp(value) - warp(low)) / span if span else 0.5)

    ticks: list[tuple[float, str]] = []
    for value in sorted(set(values)):
        if not ticks or place(value) - place(ticks[-1][0]) >= _MIN_GAP:
            ticks.append((value, short(value)))
    return Scale(place, tuple(ticks))


def numbered(count: int, labels: Mapping[int, str]) -> Scale:
    """Return a scale for `count` items in a row, from 0, with ticks at those with a label."""

    def place(value: float) -> float:
        return (value + 0.5) / count

    return Scale(place, tuple((float(at), label) for at, label in labels.items()))


def binary(low: float, high: float) -> Scale:
    """Return a logarithmic scale of sizes from `low` to `high`, with ticks at powers of 16."""
    high = max(high, 2 * low)
    span = math.log2(high / low)
    powers = range(0, 64, 4)
    ticks = tuple((2.0**n, size_text(2**n)) for n in powers if low <= 2**n <= high)
    return Scale(lambda size: math.log2(size / low) / span, ticks)


def nines(highest: float) -> Scale:
    """Return a scale of shares from 0 to `highest` (below 1), on which every additional nine has
    the same width."""
    end = -math.log10(1 - highest)
    labels = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
    ticks = tuple((q, f"p{q * 100:.6g}") for q in labels if q <= highest)
    return Scale(lambda share: -math.log10(1 - min(share, highest)) / end, ticks)


def short(value: float) -> str:
    """Format a number for an axis: 0.05, 2, 1,500, 20k, 1.5M."""
    size = abs(value)
    for limit, divisor, unit in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            return f"{value / divisor:.4g}{unit}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


def _round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 5 x 10^n that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
