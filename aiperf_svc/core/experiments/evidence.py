"""Decides whether a system holds an objective at one load, from one run or several.

A percentile is within its limit if the share of requests beyond the limit is small enough. That
share is a mean over requests, so batches of consecutive requests give an unbiased estimate of it.
Percentiles of batches are biased: they hide a short time in which everything is slow. Requests are
not independent, so the uncertainty is computed between batches (ratio estimator over batch
means; Law, Simulation Modeling and Analysis, 9.5).
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from aiperf_svc.core.compare import student
from aiperf_svc.domain.number_text import exact, significant


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of one run about one objective."""

    name: str
    """`p99 time_to_first_token`."""
    bound: Literal["max", "min"]
    limit: float
    measured: float | None
    """The run's value; None: not measured, or beyond every observed value."""
    unit: str
    is_met: bool | None
    """Judgement of the whole run; None if it has too few requests, or if none is possible."""
    is_unknown: bool = False
    """True if the value lies among cut requests, however many others there are."""
    counts: tuple[int, ...] = ()
    """Requests of each batch; empty if the objective is not a statistic of requests, or if a batch
    has too few of them."""
    totals: tuple[float, ...] = ()
    """For each batch, the number of requests beyond the limit, or the sum of the values."""
    allowed: float = 0.0
    """Maximum share beyond the limit, or the limit of the average."""
    is_share: bool = True
    """True if `totals` count requests beyond the limit, False if they are sums of values."""
    text: str = ""
    """Finding that is not the value of a whole run."""

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
        """Whether the run's value is within the limit, certainly or not."""
        if self.measured is None:
            return False
        is_below = self.measured <= self.limit
        return self.measured == self.limit or is_below is (self.bound == "max")


def is_held(runs: Sequence[Evidence]) -> bool | None:
    """Return whether these runs hold an objective at their load; None if unknown.

    If some runs have batches, runs with too few requests for batches are ignored, so longer runs
    decide. Runs that miss the objective for another reason than the values, such as failed
    requests, or whose value is unknown have no batches either; then the runs must agree. A run that
    another objective ended early is ignored.
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
    """Return the variance of a share if it were the allowed one.

    Slow requests come in clusters. A run that happens to contain few clusters has a small share and
    a small variance, which would make it seem certain. The variance of a sum of clusters grows in
    proportion to their number, that is, to the share. Independent requests have the minimum
    variance.
    """
    scaled = variance * allowed / ratio if ratio else 0.0
    return max(scaled, allowed * (1 - allowed) / size)
