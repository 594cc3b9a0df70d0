"""The limits of a run's objectives and goodput, and their outcomes.

A limit is a number in the metric's unit, or a text with a compatible unit: `9Gbit/s`, `250us`,
`1.5GB/s`, `2%`.
"""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from aiperf_svc.config.units import parse_bit_rate, parse_duration_ns, parse_size
from aiperf_svc.domain.number_text import exact, number, readable_unit, significant
from aiperf_svc.domain.shown_table import ShownTable

BATCHES = 10
"""Number of batches of a run. With more, batches would be shorter, and neighbours in a busy queue
would depend on each other; 20 would narrow the interval by only 4%."""
MIN_BATCH_SIZE = 10
"""Minimum number of requests in a batch for a statistic of the batch."""
_NS_PER = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "sec": 10**9}


def limit_of(unit: str, limit: float | str) -> float:
    """Return a limit in its metric's unit. Raises ValueError with the expected form."""
    value = _parsed(unit, limit.strip()) if isinstance(limit, str) else float(limit)
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _parsed(unit: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    parse = _PARSERS.get(unit)
    if parse is not None:
        return parse(text)
    try:
        return float(text.removesuffix(unit))
    except ValueError:
        raise ValueError(f"expected a number of {unit}") from None


def _duration_in(unit: str) -> Callable[[str], float]:
    return lambda text: parse_duration_ns(text) / _NS_PER[unit]


def _byte_rate(text: str) -> float:
    try:
        return float(parse_size(text.removesuffix("/s")))
    except ValueError:
        raise ValueError('expected a rate of bytes such as "500MB/s" or "1.5Gi/s"') from None


def _ratio(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError('expected a ratio such as "2%" or 0.02') from None


_PARSERS: dict[str, Callable[[str], float]] = {
    "bit/s": lambda text: float(parse_bit_rate(text)),
    "bytes/s": _byte_rate,
    "bytes": lambda text: float(parse_size(text)),
    "ratio": _ratio,
    **{unit: _duration_in(unit) for unit in _NS_PER},
}


class TierResult(msgspec.Struct, frozen=True):
    """Goodput by one set of limits."""

    name: str
    limits: dict[str, float | str]
    good_request_count: int
    attainment: float | None
    """Share of good requests among the due ones, failures and unsent ones included, without clients
    that leave early; None if none was due."""
    goodput: float | None
    """Good requests per second of the load; None if it took no time."""

    @property
    def text(self) -> str:
        return ", ".join(f"{metric} {limit}" for metric, limit in self.limits.items())


def tier_tables(tiers: Iterable[TierResult]) -> list[ShownTable]:
    """Return the goodput for each set of limits."""
    rows = [
        (
            each.name,
            each.text,
            number(each.good_request_count),
            "–" if each.attainment is None else f"{each.attainment:.2%}",
            number(each.goodput),
        )
        for each in tiers
    ]
    columns = ("tier", "limits", "good requests", "share of due", "goodput (requests/sec)")
    return [ShownTable("Goodput", columns, rows, texts=(0, 1))]


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
    """Reason why the objective is not held; empty if it is."""
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
        """The objective in a unit that makes its numbers short."""
        return self.in_unit(
            *readable_unit(self.unit, max(abs(self.limit), abs(self.measured or 0.0)))
        )

    def in_unit(self, divisor: float, unit: str) -> "ObjectiveResult":
        """Return the objective with its numbers divided by a divisor."""
        measured = None if self.measured is None else self.measured / divisor
        return replace(self, limit=self.limit / divisor, measured=measured, unit=unit)

    @property
    def text(self) -> str:
        """One line with the reason why it does not hold: `p99 request_latency 5 s (limit 1 s):
        ...`."""
        measured = "" if self.measured is None else f" {significant(self.measured)} {self.unit}"
        limit = f"limit {exact(self.limit)} {self.unit}".rstrip()
        reason = self.reason if self.judged else f"not judged: {self.reason}"
        return f"{self.stat} {self.metric}{measured} ({limit}): {reason}"


def outside(value: float | None, bound: str, limit: float, *, beyond: float | None = None) -> str:
    """Return how a value exceeds the limit; empty if it does not or is unknown. An unobserved value
    is at least `beyond`."""
    if bound == "max":
        shown = beyond if value is None else value
        return "above the limit" if shown is not None and shown > limit else ""
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
    """Requests of each batch that have a value; for `GOODPUT`, that were due."""
    totals: tuple[float, ...]
    """Requests beyond the limit or not good; for an average, the sum of the values."""


HELD, MISSED, NOT_JUDGED = "held", "missed", "not judged"
"""The outcomes of an objective."""


def outcome_of_all(objectives: Iterable[ObjectiveResult]) -> str:
    """Return the outcome of several objectives: the worst one, where missed is worse than not
    judged; empty without objectives."""
    words = {objective.outcome for objective in objectives}
    return next((word for word in (MISSED, NOT_JUDGED, HELD) if word in words), "")
