"""Estimates with their uncertainty, and the difference between two of them.

A request is never the sample. Requests in the same queue are slow together, so an interval that
treats them as independent is far too narrow: between identical systems it calls most pairs
different. The sample is the run or, within a single run, a batch of consecutive requests
that is long compared with the queue's memory (batch means; Law, Simulation Modeling and
Analysis, 9.5).
"""

import math
from collections.abc import Sequence
from statistics import fmean, variance

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.compare import student
from aiperf_svc.core.results.slo_results import BATCHES, MIN_BATCH_SIZE
from aiperf_svc.core.stats.percentiles import quantile
from aiperf_svc.domain.metric_formulas import Floats


class Estimate(msgspec.Struct, frozen=True):
    """Mean of independent values, with its uncertainty."""

    mean: float
    variance: float
    """Variance of the mean."""
    freedom: float
    """Degrees of freedom of the variance."""

    @property
    def half_width(self) -> float:
        """Half of the mean's confidence interval."""
        if not self.variance:
            return 0.0
        return student.quantile(self.freedom) * math.sqrt(self.variance)


class Difference(msgspec.Struct, frozen=True):
    """Difference of two means, as shares of the first one; infinite where that is 0."""

    delta: float
    low: float
    high: float
    """Confidence interval of `delta`."""
    p: float
    """Probability of a difference at least this large between two equal systems."""


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the estimate of independent values; None with fewer than two."""
    if len(values) < 2:
        return None
    return Estimate(fmean(values), variance(values) / len(values), len(values) - 1)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate of the mean of several estimates, ignoring the variance between them."""
    count = len(estimates)
    return Estimate(
        fmean(each.mean for each in estimates),
        sum(each.variance for each in estimates) / count**2,
        sum(each.freedom for each in estimates),
    )


def difference(base: Estimate, new: Estimate) -> Difference:
    """Return the difference of two means by Welch's t test, which allows unequal variances (Welch,
    Biometrika 34, 1947)."""
    gap, together = new.mean - base.mean, base.variance + new.variance
    if not together:
        delta = share(gap, base.mean)
        return Difference(delta, delta, delta, float(gap == 0))
    freedom = together**2 / (base.variance**2 / base.freedom + new.variance**2 / new.freedom)
    error = math.sqrt(together)
    reach = student.quantile(freedom) * error
    ends = sorted(share(gap + side * reach, base.mean) for side in (-1, 1))
    p = student.two_sided_p(gap / error, freedom)
    return Difference(share(gap, base.mean), ends[0], ends[1], p)


def paired_difference(pairs: Sequence[tuple[float, float]]) -> Difference | None:
    """Return the difference of pairs of means, base and new, each measured close together.

    The sample is the pair, by Student's t test on differences of logarithms, so a slowdown of both
    sides of a pair cancels. If a mean is not above 0, the test uses plain differences, as shares of
    the mean of all bases. None with fewer than two pairs.
    """
    has_logs = all(base > 0 and new > 0 for base, new in pairs)
    centre = fmean(base for base, _ in pairs) if pairs else 0.0
    gaps = [math.log(new / base) if has_logs else new - base for base, new in pairs]
    found = estimate(gaps)
    if found is None:
        return None

    def as_share(gap: float) -> float:
        return math.expm1(gap) if has_logs else share(gap, centre)

    ends = sorted(as_share(found.mean + side * found.half_width) for side in (-1, 1))
    error = math.sqrt(found.variance)
    p = student.two_sided_p(found.mean / error, found.freedom) if error else float(not found.mean)
    return Difference(as_share(found.mean), ends[0], ends[1], p)


def share(gap: float, of: float) -> float:
    """Return a difference as a share of a value; infinite for a nonzero difference from 0."""
    if not of:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / abs(of)


def batch_quantiles(
    times: NDArray[np.int64], values: Floats, shares: Sequence[float]
) -> list[tuple[float, ...]]:
    """Return the quantiles of `values` in each of `BATCHES` equal spans of time, a tuple for each
    of `shares`; empty tuples if a batch has too few values."""
    none: list[tuple[float, ...]] = [() for _ in shares]
    if len(times) < BATCHES * MIN_BATCH_SIZE:
        return none
    first = int(times.min())
    span = int(times.max()) - first + 1
    batch = (times - first) * BATCHES // span
    if np.bincount(batch, minlength=BATCHES).min() < MIN_BATCH_SIZE:
        return none
    rows = [_quantiles(values[batch == each], shares) for each in range(BATCHES)]
    return list(zip(*rows, strict=True))


def _quantiles(values: Floats, shares: Sequence[float]) -> list[float]:
    """Compute quantiles like numpy's function, which is ten times slower for a few values."""
    # Only the positions that are read need to be in order.
    lows = {math.floor(share * (len(values) - 1)) for share in shares}
    highs = {min(low + 1, len(values) - 1) for low in lows}
    parted = np.partition(values, sorted(lows | highs))
    found = (quantile(parted, share) for share in shares)
    return [value for value in found if value is not None]


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities corrected for their number. The chance of any false alarm among them
    then equals that of a single one (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    adjusted = [1.0] * len(probabilities)
    highest = 0.0
    ranked = sorted(range(len(probabilities)), key=lambda place: probabilities[place])
    for rank, place in enumerate(ranked):
        highest = max(highest, min(1.0, probabilities[place] * (len(probabilities) - rank)))
        adjusted[place] = highest
    return adjusted
