"""Checks before the stack is created that the objects exist that the config's events disturb.
`rights.event_rights` lists the rights that the events need."""

from collections.abc import Iterator

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.rights import event_rights
from aiperf_svc.config.events import SIGNALS, Event
from aiperf_svc.config.target import HOST
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.name_suggestions import did_you_mean
from aiperf_svc.plan.release import templates
from aiperf_svc.plan.stack import StackPlan

EVENTS = "events"


async def check_events(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check each Deployment and pool that an event names; None without events. Raises
    Unreachable."""
    config = plan.config.inference
    if config is None or not config.events:
        return None
    for number, event in enumerate(config.events, start=1):
        named = f"events: number {number} ({event.do})"
        if event.others is not None:
            problem = await _check_others(cluster, event, *event.others, named)
        else:
            problem = _check_own(plan, event, named)
        if problem is not None:
            return problem
    kinds = ", ".join(dict.fromkeys(each.do for each in config.events))
    return Check(EVENTS, "ok", f"{kinds}: {len(event_rights(plan))} rights")


async def _check_others(
    cluster: Cluster, event: Event, namespace: str, name: str, named: str
) -> Check | None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    try:
        found = await cluster.get(path)
    except Refused as error:
        text = f"{named}: Deployment {event.deployment} cannot be read: {error}"
        if error.status == 404:
            text = f"{named}: there is no Deployment {event.deployment}"
        return Check(EVENTS, "failed", text, "correct events.deployment, NAMESPACE/NAME")
    return _check_signals(event, found["spec"]["template"], f"Deployment {event.deployment}", named)


def _check_own(plan: StackPlan, event: Event, named: str) -> Check | None:
    """Check the objects that an event of the stack names against the stack's manifests."""
    release = plan.release
    if event.pool is not None:
        labels = plan.config.deployment.target.pools[event.pool].labels
        for template in templates(list(release.objects) if release else []):
            found = (template.get("metadata") or {}).get("labels") or {}
            if labels.items() <= found.items():
                return _check_signals(event, template, f"pool {event.pool}", named)
        return None
    if event.deployment is None:
        return None
    known = dict(_own_deployments(plan))
    if event.deployment in known:
        template = known[event.deployment]
        return _check_signals(event, template, f"Deployment {event.deployment}", named)
    if release is not None and release.custom_resources:
        # Its operator may create a Deployment of this name.
        return None
    existing = ", ".join(known) or "none"
    hint = did_you_mean(event.deployment, list(known), f"it has {existing}")
    return Check(
        EVENTS,
        "failed",
        f"{named}: the stack has no Deployment {event.deployment}{hint}",
        "correct events.deployment",
        is_config_error=True,
    )


def _own_deployments(plan: StackPlan) -> Iterator[tuple[str, Json]]:
    """Yield the Deployments that events may disturb, with their pod templates."""
    if plan.target is not None:
        shares = {"shareProcessNamespace": plan.target.shares_processes}
        yield plan.identity.name(HOST), {"spec": shares}
    for each in plan.release.objects if plan.release is not None else ():
        if each["kind"] == "Deployment":
            yield each["metadata"]["name"], each["spec"]["template"]


def _check_signals(event: Event, template: Json, what: str, named: str) -> Check | None:
    if event.do not in SIGNALS or template["spec"].get("shareProcessNamespace"):
        return None
    return Check(
        EVENTS,
        "failed",
        f"{named}: the server of {what} is process 1 of its pods, which ignores these signals",
        "set shareProcessNamespace: true in its template, or use delete-pod",
    )
