"""One finding of the verdict: what was measured, against which limit, and what to change."""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad a check's finding is; the worst is the verdict."""

    VALID = "valid"
    DEGRADED = "degraded"
    INVALID = "invalid"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One check's finding."""

    check: str
    severity: Severity
    measured: float
    limit: float
    """Beyond it, the run is not `valid`."""
    unit: str
    text: str
    """In plain words, with the numbers."""
    remedy: str

    @property
    def ok(self) -> bool:
        """Whether it passed."""
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
    """A reason by one or two limits that must not be exceeded."""
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
"""The remedy for whatever the client was too slow for."""
