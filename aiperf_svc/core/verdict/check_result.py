"""Result of one check of the verdict: the measured value, its limit, and what to change."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """Severity of a check's result, mildest first. The worst one is the verdict."""

    INFO = "info"
    """Nothing was judged: the text says what a reader should know. Never a verdict."""
    VALID = "valid"
    DEGRADED = "degraded"
    INVALID = "invalid"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check."""

    check: str
    severity: Severity
    measured: float
    limit: float
    """Largest value at which the run is still `valid`."""
    unit: str
    text: str
    """Explanation in plain words, with the numbers."""
    remedy: str

    @property
    def ok(self) -> bool:
        """True if the check passed or had nothing to judge."""
        return self.severity in (Severity.INFO, Severity.VALID)


def graded(
    check: str,
    measured: float,
    limits: tuple[float, float] | float,
    *,
    text: str,
    remedy: str,
    unit: str = "ratio",
) -> Reason:
    """Grade a measured value by one limit (degraded) or two (degraded, invalid). A value at the
    limit passes."""
    first, second = limits if isinstance(limits, tuple) else (limits, float("inf"))
    severity = Severity.VALID
    if measured > first:
        severity = Severity.INVALID if measured > second else Severity.DEGRADED
    return Reason(
        check=check,
        severity=severity,
        measured=measured,
        limit=first,
        unit=unit,
        text=text,
        remedy=remedy,
    )


def told(check: str, text: str) -> Reason:
    """Say something that a reader should know, without judging it."""
    return Reason(
        check=check,
        severity=Severity.INFO,
        measured=0.0,
        limit=0.0,
        unit="",
        text=text,
        remedy="",
    )


def worst_of(reasons: Iterable[Reason]) -> Severity:
    """The verdict that these results make together."""
    order = list(Severity)
    found = (reason.severity for reason in reasons)
    return max((Severity.VALID, *found), key=order.index)


MORE_WORKERS = "give the client more CPU or more workers (workers.max), or ask for less load"
"""Remedy for every check that fails because the client was too slow."""
