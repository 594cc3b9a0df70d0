"""Decides whether a cluster enforces NetworkPolicies, from two connections to one pod."""

from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.facts import ProbeResult

NAME = "network policies"


def judge_policies(result: ProbeResult) -> Check:
    """Check that the connection which a policy forbids has failed. It says something only if the
    allowed one to the same pod has succeeded."""
    if result.not_tried:
        return Check(NAME, "not checked", result.not_tried)
    if result.allowed:
        words = f"a pod cannot reach another pod of its namespace at all: {result.allowed}"
        return Check(NAME, "failed", words, "look at the cluster's own policies and its network")
    if result.forbidden:
        words = f"enforced: what a policy forbids has failed ({result.forbidden})"
        return Check(NAME, "ok", words)
    return Check(
        NAME,
        "warning",
        "not enforced: a pod has reached a port that a policy forbids",
        "a stack's pods can be reached by all others; tokens and keys protect them. For more, use "
        "a network plugin that enforces policies",
    )
