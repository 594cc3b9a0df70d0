"""The result of a rule set for finished runs: whether each requirement is met."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from aiperf_svc.core.rules.steady_state import Window

SCHEMA = "rules/1"


class Outcome(StrEnum):
    MET = "met"
    NOT_MET = "not met"
    UNCHECKED = "not checkable here"


class PointOutcome(msgspec.Struct, frozen=True):
    """Whether one point of the curve meets a requirement."""

    concurrency: int
    outcome: Outcome
    text: str
    """The finding, with the distance if it is missed; or why it cannot be checked."""


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    """Its name, the same as in the rules' own checker if it has one."""
    section: str
    """Section of the rules."""
    outcome: Outcome
    text: str = ""
    """Like a point's text; empty if the points have their own texts."""
    points: tuple[PointOutcome, ...] = ()
    """The outcome at each point, for a requirement on points."""


def of_curve(rule: str, section: str, is_met: bool | None, text: str) -> Requirement:
    """Return a requirement for the whole curve; None: not checkable."""
    return Requirement(rule=rule, section=section, outcome=outcome_of(is_met), text=text)


def of_points(rule: str, section: str, points: Iterable[PointOutcome]) -> Requirement:
    """Return a requirement for each point. It is met if all points meet it."""
    points = tuple(points)
    found = {each.outcome for each in points}
    worst = (each for each in (Outcome.NOT_MET, Outcome.UNCHECKED) if each in found)
    outcome = next(worst, Outcome.MET if points else Outcome.UNCHECKED)
    return Requirement(rule=rule, section=section, outcome=outcome, points=points)


def outcome_of(is_met: bool | None) -> Outcome:
    """Return the outcome; None: not checkable."""
    return Outcome.UNCHECKED if is_met is None else Outcome.MET if is_met else Outcome.NOT_MET


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the curve, with the numbers that the rules make official."""

    folder: str
    concurrency: int
    region: str
    """Empty if outside the regions."""
    basis: str
    """`steady state` or `whole run`."""
    system_tps: float | None
    """Output tokens per second of all users."""
    tps_per_user: float | None
    """1000 / P90 of the time per output token in ms; for conversations, output tokens over the time
    of all turns."""
    ttft_p90_ms: float | None
    tpot_p90_ms: float | None
    ttft_p90_bound_ms: float | None = None
    """The early-stopping estimate: with 99% confidence the percentile does not exceed it."""
    tpot_p90_bound_ms: float | None = None
    window: Window | None = None
    """None without single requests."""


class RulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rule set for the points of a curve. `verify --json` prints it."""

    schema_version: str = SCHEMA
    rules: str
    version: str
    """Version and date of the rules."""
    source: str
    """Where the rules are published."""
    regions: dict[str, tuple[int, int]]
    """Lowest and highest concurrency of each region; empty if they cannot be computed."""
    points: tuple[CurvePoint, ...]
    requirements: tuple[Requirement, ...]

    @property
    def is_met(self) -> bool:
        """Whether every checkable requirement is met."""
        return not self.count(Outcome.NOT_MET)

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in self.requirements)
