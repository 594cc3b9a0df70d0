"""Result of one check of the verdict: the measured value, its limit, and what to change."""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """Severity of a check's result. The worst one is the verdict."""

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
        """True if the check passed."""
        return self.severity is Severity.VALID


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


MORE_WORKERS = "give the client more CPU or more workers (workers.max), or ask for less load"
"""Remedy for every check that fails because the client was too slow."""
