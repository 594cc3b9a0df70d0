"""What measurements are compared with, and which values of many are worse than the others."""

from collections.abc import Mapping
from statistics import median
from typing import TypeVar

import msgspec

from aiperf_svc.core.qualify.measurements import StagePlan
from aiperf_svc.core.qualify.result import Better, CheckInfo

FEWEST_NODES = 8
"""Nodes below which no outliers are looked for."""
Z_LIMIT = 3.5
Z_SCALE = 0.6745
"""Expected ratio of the median absolute deviation to the standard deviation of a normal
distribution."""
SHARE = 0.95
"""Share of the median, of the baseline or of good nodes below which a value is worse than they."""

KeyT = TypeVar("KeyT")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a check, in the unit of its metric."""

    check: str
    value: float | None = None
    """Worst value that passes."""
    share: float | None = None
    """Worst share of the baseline that passes."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the measurements are compared with."""

    stages: tuple[StagePlan, ...]
    checks: tuple[CheckInfo, ...]
    """All that are judged."""
    limits: tuple[Limit, ...] = ()
    baseline: dict[str, dict[str, float]] = {}
    """Check to node to an earlier value. The node `""` is the median of all nodes."""

    def checks_of(self, stage: str) -> tuple[CheckInfo, ...]:
        """Return the checks of a stage."""
        return tuple(check for check in self.checks if check.stage == stage)


def outliers(values: Mapping[KeyT, float], better: Better) -> set[KeyT]:
    """Return the keys of values that are worse than the others."""
    if len(values) < FEWEST_NODES or not better:
        return set()
    centre = median(values.values())
    deviation = median(abs(value - centre) for value in values.values())
    return {
        key
        for key, value in values.items()
        if is_worse(value, centre, better) and Z_SCALE * abs(value - centre) > Z_LIMIT * deviation
    }


def is_worse(value: float, than: float, better: Better, share: float = SHARE) -> bool:
    """Return whether a value is worse than this share of another."""
    return value > than / share if better == "lower" else value < than * share
