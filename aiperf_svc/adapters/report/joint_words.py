"""Sentences about several runs at once, for the terminal and the report."""

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


def how(joint: Joint) -> str:
    """Return how the total is made; empty without one."""
    if not joint.total:
        return ""
    return f"{HOW}, {joint.interval_s:.1f} s" if joint.interval_s else HOW


def outcome(member: JointMember) -> str:
    """Return how a run ended."""
    words = [member.state]
    words += [f"verdict {member.verdict}"] if member.verdict else []
    words += [member.cause] if member.cause and member.verdict != "valid" else []
    words += [member.reason] if member.reason else []
    return ", ".join(words)
