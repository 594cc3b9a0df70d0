"""The checks of the verdict on a tool: can its numbers be trusted?

Each compares the output of the tool, or the config, with the counters that couriers read for their
ranks. A check that has nothing to compare gives an `info`, or no result.
"""

from collections.abc import Callable, Iterable

from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.workloads import completion_checks, rank_checks, traffic_checks
from aiperf_svc.workloads.step_evidence import StepEvidence

CHECKS: tuple[Callable[[StepEvidence], Reason | None], ...] = (
    completion_checks.run,
    completion_checks.steps,
    completion_checks.step_failed,
    completion_checks.retried,
    completion_checks.exit_codes,
    completion_checks.values,
    completion_checks.rank_lost,
    completion_checks.oom,
    traffic_checks.interface_bytes,
    rank_checks.step_length,
    rank_checks.tool_versions,
    rank_checks.same_node,
    rank_checks.start_skew,
    rank_checks.late_start,
    rank_checks.throttled,
    rank_checks.cpu_pressure,
    rank_checks.memory_pressure,
    rank_checks.stolen,
    traffic_checks.drops,
    traffic_checks.retransmits,
    rank_checks.repetitions,
    rank_checks.courier_load,
)
"""All checks, in the order of the table in docs/workloads.md."""
_CAUSES = (
    ("run", "run-failed"),
    ("rank-lost", "rank-lost"),
    ("oom", "step-failed"),
    ("step-failed", "step-failed"),
    ("exit-codes", "step-failed"),
    ("interface-bytes", "bytes-differ"),
    ("throttled", "rank-starved"),
)
"""Check to cause. The first that is invalid names it."""


def judge_steps(evidence: StepEvidence) -> tuple[Reason, ...]:
    """Return the results of all checks that apply."""
    found = (check(evidence) for check in CHECKS)
    return tuple(reason for reason in found if reason is not None)


def cause_of(evidence: StepEvidence, reasons: Iterable[Reason]) -> str:
    """Return why an invalid run is invalid, in a word; empty if it is valid, or the cause is
    unknown."""
    invalid = {reason.check for reason in reasons if reason.severity is Severity.INVALID}
    return next((cause for check, cause in _CAUSES if check in invalid), "")
