"""What the objectives and goodput limits of a run have given."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


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


class ObjectiveResult(msgspec.Struct, frozen=True):
    """Result of one limit."""

    metric: str
    stat: str
    bound: str
    """`max` or `min`."""
    limit: float
    measured: float | None
    """Measured value; None: not measured, or beyond every observed value."""
    unit: str
    ok: bool
    reason: str = ""
    """Reason why the objective does not hold; empty if it holds."""
    judged: bool = True
    """False if what was measured does not tell whether the limit holds. Then `ok` is false."""


HELD, MISSED, NOT_JUDGED = "held", "missed", "not judged"
"""The outcomes of an objective."""


def outcome_word(*, ok: bool, judged: bool) -> str:
    """Return the outcome of an objective in a word or two."""
    if ok:
        return HELD
    return MISSED if judged else NOT_JUDGED


def outcome_of_all(objectives: Iterable[Mapping[str, Any]]) -> str:
    """Return the outcome of objectives as they are in JSON: the worst one, where one that is missed
    is worse than one that is not judged; empty without objectives."""
    words = {outcome_word(ok=o["ok"], judged=o.get("judged", True)) for o in objectives}
    return next((word for word in (MISSED, NOT_JUDGED, HELD) if word in words), "")
