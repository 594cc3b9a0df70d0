"""Decides whether the client was good enough for its numbers to be trusted.

Each check compares one measurement with a limit. A load generator can mislead in three ways: it
offers less load than it reports, its own slowness is in the reported times, or it leaves out the
bad cases. `effect_checks` look for these in the numbers themselves and can report *invalid*.
`stream_checks` look at the times between tokens, `cause_checks` at CPU, clock and limits: a cause
without an effect is a warning.

All checks are listed, including those that passed, so that a report shows what was checked.
"""

from typing import NamedTuple

from msgspec.structs import replace

from aiperf_svc.core.verdict.cause_checks import CAUSE_CHECKS
from aiperf_svc.core.verdict.check_result import (
    ENDED_EARLY,
    MORE_WORKERS,
    Reason,
    Severity,
    Verdict,
    worst_of,
)
from aiperf_svc.core.verdict.effect_checks import EARLY_END, EFFECT_CHECKS, LOAD_SHORTFALL
from aiperf_svc.core.verdict.inputs import Evidence
from aiperf_svc.core.verdict.stream_checks import STREAM_CHECKS

CLIENT_EFFECTS = ("concurrency", "rate", "stamp_uncertainty", "schedule_lag")
"""Checks that fail when the client is overloaded. If one of them is invalid and there is no other
cause, the run is `client-bound`."""


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict, with every check that applies to this run."""
    checks = tuple(
        reason
        for check in (*EFFECT_CHECKS, *STREAM_CHECKS, *CAUSE_CHECKS)
        if (reason := check(evidence)) is not None
    )
    worst = worst_of(checks)
    other = _other_cause(evidence)
    if other is not None:
        checks = tuple(_without_advice_on_the_client(check, other.remedy) for check in checks)
    if worst is not Severity.INVALID:
        return Verdict(worst, "", checks)
    return Verdict(worst, _own_cause(checks) if other is None else other.name, checks)


class _Cause(NamedTuple):
    name: str
    """Name as in `Verdict.cause`; empty for a limit that the config asks for."""
    remedy: str


def _other_cause(e: Evidence) -> _Cause | None:
    """Return what explains a lower load other than the client; None if nothing does."""
    if e.failure:
        return _Cause("run-failed", f"the run failed: {e.failure}")
    if e.lost_services:
        return _Cause("process-lost", f"look at why {', '.join(e.lost_services)} was lost")
    # Requests that failed for lack of local descriptors or ports are the client's own fault.
    # Errors within their budget are what the config expects: they explain nothing.
    if e.share(e.errored - e.no_resources) > max(LOAD_SHORTFALL[1], e.error_budget):
        return _Cause("target-failing", "look at the errors: the target failed, not the client")
    is_limited_on_purpose = not e.is_open_loop and e.prefill_concurrency is not None
    if not is_limited_on_purpose and e.share(e.capped) > LOAD_SHORTFALL[1]:
        return _Cause("", "raise load.concurrency, the cap that held requests back")
    return None


def _without_advice_on_the_client(check: Reason, remedy: str) -> Reason:
    if MORE_WORKERS not in check.remedy:
        return check
    return replace(check, remedy=check.remedy.replace(MORE_WORKERS, remedy))


def _own_cause(checks: tuple[Reason, ...]) -> str:
    """Return `client-bound` if one of the client's own effects is invalid, `ended-early` if nothing
    else is invalid but that end."""
    bad = {check.check for check in checks if check.severity is Severity.INVALID}
    if bad & set(CLIENT_EFFECTS):
        return "client-bound"
    return ENDED_EARLY if bad == {EARLY_END} else ""
