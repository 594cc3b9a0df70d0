"""Checks that a cluster knows the types of a Prometheus operator, if the stack makes objects of
them."""

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.stack import StackPlan

GROUP = "monitoring.coreos.com"
RESOURCES = ("podmonitors", "prometheusrules")
NAME = "monitoring"


async def check_monitoring(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check that objects of the operator's types can be made; None if the stack makes none. Raises
    Unreachable."""
    if plan.config.deployment.monitoring != "prometheus-operator":
        return None
    try:
        listed = await cluster.get(f"/apis/{GROUP}/v1")
    except Refused as error:
        if error.status != 404:
            return Check(NAME, "not checked", f"the types of {GROUP} may not be read: {error}")
        listed = {}
    known = {each["name"] for each in listed.get("resources") or ()}
    missing = [each for each in RESOURCES if each not in known]
    if missing:
        return Check(
            NAME,
            "failed",
            f"deployment.monitoring is prometheus-operator, and the cluster has no type "
            f"{' and no '.join(f'{each}.{GROUP}' for each in missing)}",
            "install the operator or its CustomResourceDefinitions, or set deployment.monitoring "
            "to annotations or none",
        )
    return Check(NAME, "ok", "the cluster knows PodMonitor and PrometheusRule")
