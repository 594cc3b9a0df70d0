"""Tries whether a namespace admits a pod like the stack's. A dry run asks webhooks, Pod Security
and quotas without making the pod."""

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.rights import denied, probe_rights
from aiperf_svc.adapters.cluster.preflight.target_probe import idle_pod
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.network import PREFLIGHT
from aiperf_svc.plan.stack import StackPlan

NAME = "admission"
NO_DRY_RUN = "does not support dry run"
"""Part of the refusal when a webhook has side effects: the API server asks such a webhook only
about real objects."""


async def try_admission(cluster: Cluster, plan: StackPlan, *, namespace: str) -> Check:
    """Try to make the pod with a dry run. Raises Unreachable."""
    lacking = await denied(cluster, probe_rights(namespace))
    if lacking:
        words = f"not allowed in {namespace}: {', '.join(map(str, sorted(lacking)))}"
        return Check(NAME, "not checked", words)
    pod = idle_pod(plan, plan.identity.name(PREFLIGHT))
    try:
        await cluster.post(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    except Refused as error:
        if NO_DRY_RUN in str(error):
            return Check(NAME, "not checked", str(error))
        return Check(
            NAME,
            "failed",
            f"a pod like the stack's is refused: {error}",
            "ask who made that rule, or use another namespace",
        )
    return Check(NAME, "ok", f"a pod like the stack's is let in to {namespace}")
