"""The outcomes of a run's objectives and goodput limits."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from aiperf_svc.domain.number_text import readable_unit, significant

BATCHES = 10
"""Number of batches of a run. More of them would be shorter, and neighbours in a busy queue would
depend on each other; 20 would make the interval only 4% narrower."""
LEAST_IN_BATCH = 10
"""Fewest requests in a batch for a statistic of the batch."""


class TierResult(msgspec.Struct, frozen=True):
    """Goodput by one set of limits."""

    name: str
    limits: dict[str, float | str]
    good_request_count: int
    attainment: float | None
    """Share of the due requests that are good, failures and unsent ones included, without those of
    clients that leave early; None if none was due."""
    goodput: float | None
    """Good requests per second of the load; None if it took no time."""

    @property
    def text(self) -> str:
        return ", ".join(f"{metric} {limit}" for metric, limit in self.limits.items())


class ObjectiveResult(msgspec.Struct, frozen=True):
    """Result of one limit."""

    metric: str
    stat: str
    bound: Literal["max", "min"]
    limit: float
    measured: float | None
    """Measured value; None: not measured, or beyond every observed value."""
    unit: str
    ok: bool
    reason: str = ""
    """Reason why the objective does not hold; empty if it holds."""
    judged: bool = True
    """False if the measured values do not decide whether the limit holds. Then `ok` is false."""

    @property
    def outcome(self) -> str:
        """`HELD`, `MISSED` or `NOT_JUDGED`."""
        if self.ok:
            return HELD
        return MISSED if self.judged else NOT_JUDGED

    @property
    def readable(self) -> "ObjectiveResult":
        """The objective in a unit in which its numbers are short."""
        divisor, unit = readable_unit(self.unit, max(abs(self.limit), abs(self.measured or 0.0)))
        measured = None if self.measured is None else self.measured / divisor
        return replace(self, limit=self.limit / divisor, measured=measured, unit=unit)

    @property
    def text(self) -> str:
        """One line with the reason why it does not hold: `p99 request_latency 5 s (limit 1 s):
        ...`."""
        measured = "" if self.measured is None else f" {significant(self.measured)} {self.unit}"
        limit = f"limit {significant(self.limit)} {self.unit}".rstrip()
        reason = self.reason if self.judged else f"not judged: {self.reason}"
        return f"{self.stat} {self.metric}{measured} ({limit}): {reason}"


def outside(value: float | None, bound: str, limit: float, *, beyond: float | None = None) -> str:
    """Return that a value is outside the limit; empty if it is inside or not known. A value that
    was not observed is at least `beyond`."""
    if bound == "max":
        least = beyond if value is None else value
        return "above the limit" if least is not None and least > limit else ""
    return "below the limit" if value is not None and value < limit else ""


GOODPUT = "goodput"
"""Name of the batches of good requests."""


class ObjectiveBatches(msgspec.Struct, frozen=True, kw_only=True):
    """One objective in consecutive batches of equal time."""

    metric: str
    stat: str
    """Empty for `GOODPUT`."""
    bound: str
    limit: float | None
    """In the metric's unit; None for `GOODPUT`."""
    counts: tuple[int, ...]
    """Requests of each batch that have a value, or were due, for `GOODPUT`."""
    totals: tuple[float, ...]
    """Those beyond the limit, or that are not good; of an average, the sum of the values."""


HELD, MISSED, NOT_JUDGED = "held", "missed", "not judged"
"""The outcomes of an objective."""


def outcome_of_all(objectives: Iterable[ObjectiveResult]) -> str:
    """Return the outcome of several objectives: the worst one, where one that is missed is worse
    than one that is not judged; empty without objectives."""
    words = {objective.outcome for objective in objectives}
    return next((word for word in (MISSED, NOT_JUDGED, HELD) if word in words), "")
