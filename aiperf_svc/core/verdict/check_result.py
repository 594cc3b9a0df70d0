"""Results of the checks of a verdict: the measured value, its limit, and the remedy; and the
verdict that they form together."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """Severity of a check's result, mildest first. The worst one is the verdict."""

    INFO = "info"
    """A note for the reader without effect. Never a verdict."""
    VALID = "valid"
    DEGRADED = "degraded"
    INVALID = "invalid"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check."""

    check: str
    severity: Severity
    measured: float
    limit: float
    """The exceeded limit: the largest value that is not `invalid` for a check that makes the run
    invalid, otherwise the largest value that is `valid`."""
    unit: str
    text: str
    """Explanation in plain words, with the numbers."""
    remedy: str

    @property
    def ok(self) -> bool:
        """True if the check passed or had nothing to judge."""
        return self.severity in (Severity.INFO, Severity.VALID)


TARGET_FAILING = "target-failing"
"""Cause of a run with too many failed requests that the client did not cause."""
UNUSABLE_RESPONSES = "unusable-responses"
"""Cause of a run that only checks of the target's responses made invalid."""
LOAD_CAPPED = "load-capped"
"""Cause of a run whose cap on concurrency held too many requests back. Only a faster target makes
the same run valid."""
STEP_FAILED = "step-failed"
"""Cause of a tool's run in which a command failed or had no result."""
RUN_FAILED = "run-failed"
"""Cause of an unfinished run, because of the client's environment or of the system."""
RANK_LOST = "rank-lost"
"""Cause of a tool's run in which a rank did not report a step."""
UNFINISHED = (RUN_FAILED, RANK_LOST)
"""Causes that may conceal a failure of the measured system."""
FAILURES = (TARGET_FAILING, UNUSABLE_RESPONSES, LOAD_CAPPED, STEP_FAILED)
"""Causes that are part of the measurement: without such runs, the system looks too good."""
ENDED_EARLY = "ended-early"
"""Cause of a run that a search ended early because it had enough data. It is not a measurement."""


def is_failure(cause: str) -> bool:
    """Return whether a cause is one of `FAILURES`. The cause of a total of several runs is the text
    of all their causes."""
    return any(failure in cause for failure in FAILURES)


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a run: the worst result of all checks."""

    verdict: Severity
    cause: str
    """Cause of an invalid run, if known. For an inference benchmark: `client-bound`,
    `run-failed`, `process-lost`, `target-failing`, `unusable-responses`, `load-capped` or
    `ended-early`."""
    checks: tuple[Reason, ...]

    @property
    def label(self) -> str:
        """`valid`, `degraded`, `invalid`, or `invalid: ` and the cause."""
        return f"{self.verdict}: {self.cause}" if self.cause else str(self.verdict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader, without effect on the verdict."""
        return tuple(check.text for check in self.checks if check.severity is Severity.INFO)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The checks that did not pass, worst first."""
        failed = [check for check in self.checks if not check.ok]
        return tuple(sorted(failed, key=lambda check: check.severity is not Severity.INVALID))


def graded(
    check: str,
    measured: float,
    limits: tuple[float, float] | float,
    *,
    text: str,
    remedy: str,
    unit: str = "ratio",
) -> Reason:
    """Grade a measured value by one limit (degraded) or two (degraded, invalid). A value equal to
    the limit passes."""
    first, second = limits if isinstance(limits, tuple) else (limits, float("inf"))
    severity = Severity.VALID
    if measured > first:
        severity = Severity.INVALID if measured > second else Severity.DEGRADED
    return Reason(
        check=check,
        severity=severity,
        measured=measured,
        limit=second if severity is Severity.INVALID else first,
        unit=unit,
        text=text,
        remedy=remedy,
    )


def expect_none(check: str, found: float, *, unit: str, text: str, remedy: str) -> Reason:
    """Grade a number of things, a single one of which makes the run invalid."""
    return graded(check, float(found), (0.0, 0.0), unit=unit, text=text, remedy=remedy)


def run_ended(failure: str) -> Reason:
    """Check that the run finished."""
    return expect_none(
        "run",
        1.0 if failure else 0.0,
        unit="failed",
        text=f"the run failed: {failure}" if failure else "the run finished",
        remedy="check what the failure names, and the logs of the services",
    )


def note(check: str, text: str) -> Reason:
    """Return a note for the reader without effect on the verdict."""
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
    """Return the verdict that these results form together."""
    order = list(Severity)
    found = (reason.severity for reason in reasons)
    return max((Severity.VALID, *found), key=order.index)


MORE_WORKERS = "give the client more CPU or more workers (workers.max), or lower the load"
"""Remedy for every check that fails because the client was too slow. The verdict replaces it if the
client did not lack CPU."""
