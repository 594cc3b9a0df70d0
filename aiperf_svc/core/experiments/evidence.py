"""Decides whether a system holds an objective at one load, from one run or several.

A percentile is within its limit if the share of requests beyond the limit is small enough. That
share is a mean over requests, so it is estimated without bias from batches of consecutive requests,
which the percentiles of batches are not: these hide a short time in which everything is slow.
Requests are not independent, so the uncertainty is that between batches (ratio estimator over batch
means; Law, Simulation Modeling and Analysis, 9.5).
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from aiperf_svc.core.compare import student
from aiperf_svc.domain.number_text import exact, significant


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one run says about one objective."""

    name: str
    """`p99 time_to_first_token`."""
    bound: Literal["max", "min"]
    limit: float
    measured: float | None
    """The run's value; None: not measured, or beyond every observed value."""
    unit: str
    is_met: bool | None
    """Judgement of the run as a whole; None if it has too few requests, or none is possible."""
    is_unknown: bool = False
    """True if the value is among requests that were cut off, however many others there are."""
    counts: tuple[int, ...] = ()
    """Requests of each batch; empty if the objective is not a statistic of requests, or if a batch
    has too few of them."""
    totals: tuple[float, ...] = ()
    """For each batch, the number of requests beyond the limit, or the sum of the values."""
    allowed: float = 0.0
    """Greatest share beyond the limit, or the limit of the average."""
    is_share: bool = True
    """True if `totals` are requests beyond the limit, False if they are sums of values."""
    text: str = ""
    """What was found, where it is not a value of a whole run."""

    def __str__(self) -> str:
        if self.text:
            return self.text
        if self.measured is None:
            return f"{self.name} has no value"
        sign = {True: "≤", False: ">"} if self.bound == "max" else {True: "≥", False: "<"}
        unit = f" {self.unit}" if self.unit else ""
        mark = sign[self.is_within]
        measured, limit = significant(self.measured), exact(self.limit)
        return f"{self.name} {measured}{unit} {mark} {limit}{unit}"

    @property
    def is_within(self) -> bool:
        """Whether the run's value is within the limit, certain or not."""
        if self.measured is None:
            return False
        is_below = self.measured <= self.limit
        return self.measured == self.limit or is_below is (self.bound == "max")


def is_held(runs: Sequence[Evidence]) -> bool | None:
    """Return whether an objective is held at the load of these runs; None if they do not tell.

    Beside runs with batches, one that has too few requests for them tells nothing, so that longer
    runs decide. A run that misses its objective for another reason than the values, such as failed
    requests, or whose value is unknown, has no batches either: then the runs must agree. A run that
    was ended early by another objective tells nothing.
    """
    batched = [run for run in runs if run.counts]
    others = [r for r in runs if not r.counts and (r.is_met is not None or r.is_unknown)]
    if batched:
        others = [run for run in others if run.text]
        if not others:
            return _by_batches(batched)
    outcomes = {run.is_met for run in (*batched, *others)}
    return outcomes.pop() if len(outcomes) == 1 else None


def share_beyond(runs: Sequence[Evidence]) -> float | None:
    """Return the share of requests beyond the limit over all runs; None for an average."""
    size = sum(sum(run.counts) for run in runs)
    if not size or not runs[0].is_share:
        return None
    return sum(sum(run.totals) for run in runs) / size


def _by_batches(runs: Sequence[Evidence]) -> bool | None:
    counts = [count for run in runs for count in run.counts]
    totals = [total for run in runs for total in run.totals]
    size, batches, allowed = sum(counts), len(counts), runs[0].allowed
    ratio = sum(totals) / size
    spread = sum((total - ratio * count) ** 2 for total, count in zip(totals, counts, strict=True))
    variance = batches / (batches - 1) * spread / size**2
    if runs[0].is_share:
        variance = _variance_at(allowed, ratio, variance, size)
    reach = student.quantile(batches - 1) * math.sqrt(variance)
    gap = ratio - allowed
    if not runs[0].is_share and runs[0].bound == "min":
        gap = -gap
    if gap <= -reach:
        return True
    return False if gap > reach else None


def _variance_at(allowed: float, ratio: float, variance: float, size: int) -> float:
    """Return the variance that a share would have if it were the allowed one.

    Slow requests come in clusters. A run in which few clusters happened to come has a small share
    and a small variance, and with that variance it would seem certain. The variance of a sum of
    clusters grows as their number does, that is, as the share. Requests that are independent have
    the least variance there can be.
    """
    scaled = variance * allowed / ratio if ratio else 0.0
    return max(scaled, allowed * (1 - allowed) / size)
