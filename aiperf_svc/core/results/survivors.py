"""Decides whether a statistic of the requests that got a response represents all requests.

A latency exists only for a request that got a response. When a server refuses most requests, the
few that succeed are often the fast ones, and their percentiles look good. So an objective checks
two more conditions besides its limit: the statistic leaves out no more requests than the error
budget allows, and it has enough values.
"""

import math

import msgspec

from aiperf_svc.config.units import format_share
from aiperf_svc.core.stats.percentiles import QUANTILES, Distribution
from aiperf_svc.domain.metric_catalog import Kind, Metric, Population


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of the requests that were due in the phase."""

    completed: int
    errored: int = 0
    timed_out: int = 0
    """Those of `errored` that timed out."""
    cancelled: int = 0
    unsent: int = 0
    lost: int = 0

    @property
    def due(self) -> int:
        """Number of requests that were due."""
        return self.completed + self.errored + self.cancelled + self.unsent + self.lost

    def missing_from(self, metric: Metric) -> dict[str, int]:
        """Return the number of requests that the metric's statistics leave out, by outcome. A
        metric takes its right-censored values into account."""
        is_of_requests = metric.population is not Population.CONNECTIONS
        if metric.kind not in (Kind.RECORD, Kind.POOLED) or not is_of_requests:
            return {}
        if metric.population is Population.DUE:
            return {"failed": self.errored - self.timed_out, "lost": self.lost}
        if metric.population is Population.SENT:
            return {"lost": self.lost}
        return {
            "failed": self.errored - self.timed_out,
            "timed out": self.timed_out,
            "cancelled": self.cancelled,
            "unsent": self.unsent,
            "lost": self.lost,
        }


def over_budget(metric: Metric, failures: Failures, budget: float) -> str:
    """Return why the requests that the metric leaves out are too many; empty if they are not."""
    missing = {name: count for name, count in failures.missing_from(metric).items() if count > 0}
    count = sum(missing.values())
    if not count or count / failures.due <= budget:
        return ""
    parts = ", ".join(f"{number:,} {name}" for name, number in missing.items())
    return (
        f"leaves out {count:,} of {failures.due:,} requests ({parts}), "
        f"{count / failures.due:.2%} against an error budget of {format_share(budget)}"
    )


def too_few_values(stat: str, distribution: Distribution) -> str:
    """Return why there are too few values for the percentile; empty if there are enough."""
    if stat not in distribution.unreliable:
        return ""
    q = QUANTILES[stat]
    needed = math.ceil(round(1 / min(q, 1 - q), 9))
    count = distribution.count + distribution.censored
    return f"{stat} needs {needed:,} values, there {'is' if count == 1 else 'are'} {count:,}"
