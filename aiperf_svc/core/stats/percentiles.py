"""Computes exact statistics of one column of values, including values that were cut.

Percentiles interpolate linearly between the two nearest values, like numpy's default and AIPerf
(Hyndman and Fan, The American Statistician 50(4), 1996, definition 7). The standard deviation is
the population's (divided by n), like AIPerf's.

*Right-censored* values are only known to exceed a bound: a request cancelled after 3 s would have
taken longer than 3 s. They rank above every observed value, so a percentile that falls among them
has no value. It exceeds the same percentile of the observed values and the bounds together, and
this number is reported instead.

A percentile is *thin* when fewer than one value is expected outside it: p99 needs 100 values, p99.9
needs 1,000, p1 needs 100.
"""

import math

import msgspec
import numpy as np

from aiperf_svc.domain.metric_formulas import Floats

QUANTILES = {
    "p1": 0.01,
    "p5": 0.05,
    "p10": 0.10,
    "p25": 0.25,
    "p50": 0.50,
    "p75": 0.75,
    "p90": 0.90,
    "p95": 0.95,
    "p99": 0.99,
    "p99_9": 0.999,
}
_PIECE = 1 << 14
"""Number of values whose squares are summed at a time, so that they stay in the processor's
cache."""


class Distribution(msgspec.Struct, frozen=True):
    """Statistics of one metric, in its unit; None if unknown."""

    count: int
    """Number of observed values."""
    stats: dict[str, float | None]
    """Values of `avg`, `min`, `max`, `std`, `sum` and the names of `QUANTILES`."""
    censored: int = 0
    """Number of values only known to exceed a bound."""
    beyond: dict[str, float] = {}
    """Lower bounds of the statistics that are None because of censoring."""
    unreliable: tuple[str, ...] = ()
    """Percentiles with too few values beyond them."""
    relative_error: float = 0.0
    """Relative error of each percentile; 0: exact."""

    @property
    def censored_share(self) -> float:
        """Share of censored values, 0 to 1."""
        total = self.count + self.censored
        return self.censored / total if total else 0.0


def is_thin(q: float, count: int) -> bool:
    """Return whether fewer than one of `count` values is expected beyond the quantile `q`."""
    return round(count * min(q, 1 - q), 9) < 1.0


def quantile(ordered: Floats, q: float, *, of: int | None = None) -> float | None:
    """Return the quantile `q` of ascending values by linear interpolation.

    If `of` is larger than the length, the difference is the number of values above all of these.
    None if the quantile falls among those.
    """
    place = q * ((len(ordered) if of is None else of) - 1)
    low = math.floor(place)
    part = place - low
    high = low + (1 if part > 0 else 0)
    if high >= len(ordered):
        return None
    below, above = float(ordered[low]), float(ordered[high])
    # From the nearer end, like numpy, so that results are equal to the last bit.
    return above - (above - below) * (1 - part) if part >= 0.5 else below + (above - below) * part


def describe(
    values: Floats, *, bounds: Floats | None = None, is_thin_null: bool = False
) -> Distribution:
    """Return the statistics of `values`, which are sorted in place.

    `bounds` are the lower bounds of right-censored values. With `is_thin_null`, thin percentiles
    are None instead of being listed only.
    """
    values.sort()
    censored = 0 if bounds is None else len(bounds)
    total = len(values) + censored
    stats: dict[str, float | None] = {}
    beyond: dict[str, float] = {}
    if len(values):
        _moments(values, stats)
    for name, q in QUANTILES.items():
        stats[name] = quantile(values, q, of=total) if total else None
    if bounds is not None and censored:
        _censor(values, bounds, stats, beyond)
    unreliable = tuple(name for name, q in QUANTILES.items() if is_thin(q, total))
    if is_thin_null:
        for name in unreliable:
            stats[name] = None
            beyond.pop(name, None)
    return Distribution(len(values), stats, censored, beyond, unreliable)


def _moments(ordered: Floats, stats: dict[str, float | None]) -> None:
    total = float(ordered.sum())
    mean = total / len(ordered)
    squares = 0.0
    for begin in range(0, len(ordered), _PIECE):
        off = ordered[begin : begin + _PIECE] - mean
        squares += float(np.square(off, out=off).sum())
    stats["avg"] = mean
    stats["min"], stats["max"] = float(ordered[0]), float(ordered[-1])
    stats["std"] = math.sqrt(squares / len(ordered))
    stats["sum"] = total


def _censor(
    ordered: Floats, bounds: Floats, stats: dict[str, float | None], beyond: dict[str, float]
) -> None:
    """Remove the statistics that the censored values could change, and record their lower
    bounds."""
    everything = np.concatenate((ordered, bounds))
    everything.sort()
    beyond["avg"] = float(everything.mean())
    beyond["max"] = float(everything[-1])
    beyond["sum"] = float(everything.sum())
    for name, q in QUANTILES.items():
        bound = quantile(everything, q)
        if stats[name] is None and bound is not None:
            beyond[name] = bound
    stats["avg"] = stats["max"] = stats["std"] = stats["sum"] = None
    stats.setdefault("min", None)
