"""Sentences about several runs at once, for the terminal and the report."""

from aiperf_svc.adapters.report.experiment_words import counts
from aiperf_svc.core.experiments.joint_trials import (
    ExperimentMember,
    JointExperiment,
    widest_start,
)
from aiperf_svc.core.results.joint_result import Joint, JointMember

HOW = (
    "Counts of the total are sums. Its percentiles are those of all requests together. Its rates "
    "are over the time that all loads have in common"
)


def start(joint: Joint) -> str:
    """Return how close the starts were; empty if there were not two."""
    if joint.start_spread_ms is None or joint.start_uncertainty_ms is None:
        return ""
    return (
        f"first measured requests within {joint.start_spread_ms:.1f} ms of each other, "
        f"by clocks that are known to ± {joint.start_uncertainty_ms:.1f} ms"
    )


def starts(joint: JointExperiment) -> str:
    """Return how close the starts of the trials were; empty if there were not two."""
    found = widest_start(each for _, each in joint.trials)
    if found is None:
        return ""
    spread_ms, uncertainty_ms = found
    return (
        f"first measured requests of each trial within {spread_ms:.1f} ms of each other, "
        f"by clocks that are known to ± {uncertainty_ms:.1f} ms"
    )


def how(joint: Joint) -> str:
    """Return how the total is made; empty without one."""
    if not joint.total:
        return ""
    return f"{HOW}, {joint.interval_s:.1f} s" if joint.interval_s else HOW


def end(member: ExperimentMember) -> str:
    """Return how the trials of a run ended."""
    left_out = member.summary.left_out
    words = [member.state, counts(member.summary)]
    words += [f"{len(left_out):,} left out"] if left_out else []
    words += [member.reason] if member.reason else []
    return ", ".join(words)


def outcome(member: JointMember) -> str:
    """Return how a run ended."""
    words = [member.state]
    words += [f"verdict {member.verdict}"] if member.verdict else []
    words += [member.cause] if member.cause and member.verdict != "valid" else []
    words += [member.reason] if member.reason else []
    return ", ".join(words)
