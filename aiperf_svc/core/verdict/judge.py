"""Decides whether the client was good enough for trustworthy numbers.

Each check compares one measurement with a limit. A load generator can mislead in three ways: it
offers less load than it reports, its own slowness is part of the reported times, or it omits the
bad cases. `effect_checks` detect these in the numbers themselves and can report *invalid*.
`stream_checks` examine the times between tokens, `cause_checks` CPU, clock and limits. A cause
without an effect is a warning.

All checks are listed, including passed ones, so a report shows what was checked.
"""

from typing import NamedTuple

from msgspec.structs import replace

from aiperf_svc.core.verdict.cause_checks import CAUSE_CHECKS, is_busy, lacks_cpu
from aiperf_svc.core.verdict.check_result import (
    ENDED_EARLY,
    LOAD_CAPPED,
    MORE_WORKERS,
    RUN_FAILED,
    TARGET_FAILING,
    UNUSABLE_RESPONSES,
    Reason,
    Severity,
    Verdict,
    worst_of,
)
from aiperf_svc.core.verdict.effect_checks import (
    EARLY_END,
    EFFECT_CHECKS,
    LOAD_SHORTFALL,
    RATE_SHORTFALL,
    caps_below_rate,
)
from aiperf_svc.core.verdict.inputs import Evidence
from aiperf_svc.core.verdict.stream_checks import STREAM_CHECKS

CLIENT_EFFECTS = ("concurrency", "rate", "stamp_uncertainty", "schedule_lag")
"""Checks that fail when the client is overloaded. If one of them is invalid without another cause,
the run is `client-bound`."""
TARGET_CHECKS = frozenset(
    {"successes", "finish_reasons", "input_tokens", "token_bytes", "unasked_bytes"}
)
"""Checks of the target's responses. If no other is invalid, the client is not the cause."""

FAST_MS = 1.0
"""A server that handles one request in twenty in less than this has negligible latency: the
client's own time per request, some 0.03 ms of CPU and two passes through the kernel, is more than
5% of it. No server with a model is that fast."""


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict, with every check that applies to this run."""
    checks = tuple(
        reason
        for check in (*EFFECT_CHECKS, *STREAM_CHECKS, *CAUSE_CHECKS)
        if (reason := check(evidence)) is not None
    )
    worst = worst_of(checks)
    other = _other_cause(evidence)
    remedy = _remedy_on_the_client(evidence) if other is None else other.remedy
    checks = tuple(_with_remedy(check, remedy) for check in checks)
    if worst is not Severity.INVALID:
        return Verdict(worst, "", checks)
    return Verdict(worst, _own_cause(evidence, checks) if other is None else other.name, checks)


class _Cause(NamedTuple):
    name: str
    """Name as in `Verdict.cause`; empty if the client may be a cause too."""
    remedy: str


def _other_cause(e: Evidence) -> _Cause | None:
    """Return a cause of a lower load other than the client; None if there is none."""
    if e.failure:
        return _Cause(RUN_FAILED, f"the run failed: {e.failure}")
    if e.lost_services:
        return _Cause("process-lost", f"find out why {', '.join(e.lost_services)} was lost")
    # Requests that failed for lack of local descriptors or ports are the client's own fault.
    # Errors within their budget are expected by the config, so they explain nothing.
    if e.share(e.totals.errored - e.totals.no_resources) > max(LOAD_SHORTFALL[1], e.error_budget):
        return _Cause(TARGET_FAILING, "check the errors: the target failed, not the client")
    if caps := caps_below_rate(e, RATE_SHORTFALL[1]):
        # A client that lacks CPU prolongs the requests that fill the cap.
        is_slow = lacks_cpu(e.workers) or is_busy(e.timing)
        return _Cause("" if is_slow else LOAD_CAPPED, f"raise {caps}, or lower the rate")
    return None


def _remedy_on_the_client(e: Evidence) -> str:
    """Return the remedy for a client that was too slow: more CPU only if it lacked CPU."""
    if e.fastest_ms is not None and e.fastest_ms < FAST_MS:
        return (
            f"the server is too fast for this check: it responds in {e.fastest_ms:.2g} ms, about "
            "as long as the client needs for a request. Use request_throughput as a lower bound, "
            "and no latencies; to try this tool, give the mock server a latency (--ttft 20ms)"
        )
    lacks = lacks_cpu(e.workers)
    if lacks is None:
        return "run for 5 s or longer: this run was too short to tell whether the client lacked CPU"
    if lacks or is_busy(e.timing):
        return MORE_WORKERS
    used = max(health.cpu_mean for health in e.workers)
    waited = max(health.waited_share for health in e.workers)
    return (
        f"the client did not lack CPU (a worker used at most {used:.0%} of a core and waited for "
        f"one {waited:.2%} of the time): run again, and for longer if few requests decide this "
        "check"
    )


def _with_remedy(check: Reason, remedy: str) -> Reason:
    if remedy == MORE_WORKERS or MORE_WORKERS not in check.remedy:
        return check
    return replace(check, remedy=check.remedy.replace(MORE_WORKERS, remedy))


def _own_cause(e: Evidence, checks: tuple[Reason, ...]) -> str:
    """Return `client-bound` if one of the client's own effects is invalid, `unusable-responses` if
    only checks of the target's responses are, `ended-early` if only the early end is. A run that
    the user stopped, or that sent and tried nothing, does not show what the target responds."""
    bad = {check.check for check in checks if check.severity is Severity.INVALID}
    if bad & set(CLIENT_EFFECTS):
        return "client-bound"
    if bad <= TARGET_CHECKS and not e.was_cancelled and (e.requests or e.connecting):
        return UNUSABLE_RESPONSES
    return ENDED_EARLY if bad == {EARLY_END} else ""
