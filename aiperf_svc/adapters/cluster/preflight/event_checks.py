"""Checks whether what the events of a config disturb is there, before the stack is made. The rights
that they need are those of `rights.event_rights`."""

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.rights import event_rights
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.stack import StackPlan

EVENTS = "events"


async def check_events(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check each Deployment of others that an event names; None without events. Raises
    Unreachable."""
    config = plan.config.inference
    if config is None or not config.events:
        return None
    for number, event in enumerate(config.events, start=1):
        if event.others is None:
            continue
        named = f"events: number {number} ({event.do})"
        namespace, name = event.others
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
        try:
            found = await cluster.get(path)
        except Refused as error:
            text = f"{named}: Deployment {event.deployment} cannot be read: {error}"
            if error.status == 404:
                text = f"{named}: there is no Deployment {event.deployment}"
            return Check(EVENTS, "failed", text, "correct events.deployment, NAMESPACE/NAME")
        shares = found["spec"]["template"]["spec"].get("shareProcessNamespace")
        if event.do in ("kill", "stall") and not shares:
            return Check(
                EVENTS,
                "failed",
                f"{named}: the server of Deployment {event.deployment} is process 1 of its pods, "
                "which ignores these signals",
                "set shareProcessNamespace: true in its template, or use delete-pod",
            )
    kinds = ", ".join(dict.fromkeys(each.do for each in config.events))
    return Check(EVENTS, "ok", f"{kinds}: {len(event_rights(plan))} rights")
