"""Waits until a Kueue queue has admitted a stack, and then starts its time to live."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.core.cluster.conditions import conditions_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import ANCHOR, TTL_ANNOTATION
from aiperf_svc.plan.lifetime import seconds
from aiperf_svc.plan.queue import GATE, GROUP_LABEL, KUEUE, MANAGED_LABEL, QueuePlan
from aiperf_svc.plan.stack import StackPlan

POLL_S = 1.0
REPORT_S = 30.0
"""Interval between messages about the reason for the wait."""


class AdmissionWatch:
    """Watches the pod group of a stack in its queue."""

    def __init__(self, cluster: Cluster, plan: StackPlan, say: Callable[[str], None]) -> None:
        self._cluster, self._plan, self._say = cluster, plan, say
        self._has_begun = False
        """Whether the time to live has started."""

    async def wait_for_rejection(self) -> str:
        """Return one line when the queue does not admit the stack: the queue, how long, and why.
        Never return after the admission or without a queue. The caller cancels it when `up` has
        ended."""
        if self._plan.queue is not None:
            line = await self._rejection(self._plan.queue)
            if line:
                return line
        await asyncio.Event().wait()
        raise AssertionError

    async def begin(self) -> None:
        """Start the time to live, unless it has started: the stack is up. Raises
        EnvironmentProblem."""
        if self._plan.queue is not None and not self._has_begun:
            await _begin_ttl(self._cluster, self._plan)
            self._has_begun = True

    async def _rejection(self, queue: QueuePlan) -> str:
        """Return the reason why the queue does not admit the stack; empty after its admission."""
        namespace, say = self._plan.config.deployment.namespace.name or "", self._say
        begun_mono_s = printed_mono_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - begun_mono_s
            try:
                pods = await _group(self._cluster, namespace, queue)
                if unmanaged := _unmanaged(pods, queue):
                    return unmanaged
                if is_admitted(pods, queue):
                    await self.begin()
                    say(f"queue {queue.name} has admitted the stack after {waited_s:.0f} s")
                    return ""
                if waited_s > queue.timeout_s:
                    why = await _reason(self._cluster, namespace, queue, pods)
                    return (
                        f"queue {queue.name} has not admitted the stack after {waited_s:.0f} s: "
                        f"{why}; wait for others, ask for less, or raise deployment.queue_timeout"
                    )
                if time.monotonic() - printed_mono_s > REPORT_S:
                    printed_mono_s = time.monotonic()
                    why = await _reason(self._cluster, namespace, queue, pods)
                    say(f"waiting in queue {queue.name} for {waited_s:.0f} s: {why}")
            except Unreachable:
                # `watched_contact` reports it.
                pass
            except Refused as error:
                if error.status == 403:
                    return f"queue {queue.name}: its pods cannot be watched: {error}"
            await asyncio.sleep(POLL_S)


def is_admitted(pods: Sequence[Json], queue: QueuePlan) -> bool:
    """Return whether all pods of the group exist, and none has the queue's scheduling gate."""
    return len(pods) >= queue.pods and not any(map(_is_gated, pods))


def _is_gated(pod: Json) -> bool:
    gates = pod.get("spec", {}).get("schedulingGates") or ()
    return any(each.get("name") == GATE for each in gates)


def _unmanaged(pods: Sequence[Json], queue: QueuePlan) -> str:
    """Return the reason why pods are in no queue. Kueue's webhook labels its pods."""
    if len(pods) < queue.pods:
        return ""
    if all(MANAGED_LABEL in (pod["metadata"].get("labels") or {}) for pod in pods):
        return ""
    return (
        f"queue {queue.name}: Kueue does not manage the pods of this namespace; its configuration "
        "needs the integration `pod`, and must not exclude the namespace"
    )


async def _group(cluster: Cluster, namespace: str, queue: QueuePlan) -> list[Json]:
    path, selector = f"/api/v1/namespaces/{namespace}/pods", f"{GROUP_LABEL}={queue.group}"
    found = await cluster.get(path, labelSelector=selector)
    return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]


async def _reason(cluster: Cluster, namespace: str, queue: QueuePlan, pods: Sequence[Json]) -> str:
    """Return the reason why the group waits, from the conditions of its Workload."""
    if len(pods) < queue.pods:
        return f"{len(pods)} of {queue.pods} pods of the group exist"
    try:
        found = await cluster.get(f"{KUEUE}/namespaces/{namespace}/workloads/{queue.group}")
    except Refused as error:
        return f"its Workload {queue.group} cannot be read: {error}"
    parts = [
        one_line(each.get("message") or each.get("reason") or "")
        for name, each in conditions_of(found).items()
        if each["status"] == "False" or name == "Evicted"
    ]
    return "; ".join(filter(None, parts)) or "it gives no reason"


async def _begin_ttl(cluster: Cluster, plan: StackPlan) -> None:
    """Write the time to live, counted from the anchor's creation, into the anchor. The deadline's
    pod reads it there. Raises EnvironmentProblem if the anchor is gone or the user may not change
    it, Unreachable if the API server fails."""
    namespace = plan.config.deployment.namespace.name
    path = f"/api/v1/namespaces/{namespace}/configmaps/{plan.identity.name(ANCHOR)}"
    try:
        anchor = await cluster.get(path)
        created = datetime.fromisoformat(anchor["metadata"]["creationTimestamp"])
        waited_s = (await cluster.now() - created).total_seconds()
        ttl_s = math.ceil(max(0.0, waited_s)) + seconds(plan.config.deployment.ttl)
        await cluster.patch(path, {"metadata": {"annotations": {TTL_ANNOTATION: str(ttl_s)}}})
    except Refused as error:
        kind = EnvironmentProblem if error.status in (403, 404) else Unreachable
        raise kind(f"the time to live of the stack cannot be set: {error}") from error
