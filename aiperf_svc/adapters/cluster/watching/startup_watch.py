"""Watches the startup of a stack, and reports when it cannot succeed."""

import asyncio
import logging
import math
import time
from collections.abc import Iterable

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.watching.startup_failure import (
    StartupFailureDetector,
    claims_of,
    lacks_volume,
)
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import JOB_LABEL, STACK_LABEL

POLL_S = 1.0
"""Seconds between polls. Unlike Events, statuses always exist and describe the present."""
UNSCHEDULABLE_S = 60.0
"""Time for a cluster to find a node. A cluster that creates nodes on demand needs minutes."""

log = logging.getLogger(__name__)


async def wait_for_startup_failure(
    cluster: Cluster,
    *,
    stack: str,
    namespace: str,
    unschedulable_s: float = UNSCHEDULABLE_S,
    longest_s: float = math.inf,
    has_ranks: bool = False,
    is_change: bool = False,
) -> str:
    """Return one line when `up` can no longer succeed: pod, value, remedy. The caller cancels it
    when `up` has ended.

    `longest_s` is the readiness timeout of each pod. `has_ranks`: the stack has StatefulSets.
    `is_change`: the stack existed before, so its present pods are ignored.
    """
    detector = StartupFailureDetector(unschedulable_s=unschedulable_s, longest_s=longest_s)
    earlier: frozenset[str] | None = None if is_change else frozenset()
    scope = f"/namespaces/{namespace}"
    while True:
        try:
            pods = await _labelled(cluster, f"/api/v1{scope}/pods", stack)
            if earlier is None:
                earlier = frozenset(pod["metadata"]["uid"] for pod in pods)
            pods = [
                pod
                for pod in pods
                # The collector judges the pods of Jobs; `up` does not wait for them.
                if pod["metadata"]["uid"] not in earlier
                and JOB_LABEL not in pod["metadata"].get("labels", {})
            ]
            deployments = await _labelled(cluster, f"/apis/apps/v1{scope}/deployments", stack)
            refusals = await _refusals(cluster, scope, stack) if has_ranks else []
            claims = await _claim_events(cluster, scope, pods)
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and error.status == 403:
                log.warning("the stack's pods cannot be watched: %s", error)
                # Then only `up` itself shows whether it succeeds.
                await asyncio.Event().wait()
            log.debug("watching the stack come up: %s", error)
        else:
            line = detector.handle(pods, deployments, refusals, claims, now_s=time.monotonic())
            if line is not None:
                return line
        await asyncio.sleep(POLL_S)


async def _refusals(cluster: Cluster, scope: str, stack: str) -> list[Json]:
    """Return the Events about pods that StatefulSets of the stack still cannot create."""
    sets = await _labelled(cluster, f"/apis/apps/v1{scope}/statefulsets", stack)
    lacking = {
        each["metadata"]["uid"]
        for each in sets
        if each.get("status", {}).get("replicas", 0) < each["spec"]["replicas"]
    }
    if not lacking:
        return []
    wanted = "involvedObject.kind=StatefulSet,reason=FailedCreate"
    events = await cluster.get(f"/api/v1{scope}/events", fieldSelector=wanted)
    return [each for each in events["items"] if each["involvedObject"].get("uid") in lacking]


async def _claim_events(cluster: Cluster, scope: str, pods: Iterable[Json]) -> list[Json]:
    """Return the Events about claims that keep pods from being scheduled, sorted by time."""
    names = {name for pod in pods if lacks_volume(pod) for name in claims_of(pod)}
    if not names:
        return []
    wanted = "involvedObject.kind=PersistentVolumeClaim"
    events = await cluster.get(f"/api/v1{scope}/events", fieldSelector=wanted)
    found = [each for each in events["items"] if each["involvedObject"]["name"] in names]
    return sorted(found, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "")


async def _labelled(cluster: Cluster, path: str, stack: str) -> list[Json]:
    # Version 0 reads the API server's cache instead of etcd. The list may be a second old.
    found = await cluster.get(path, labelSelector=f"{STACK_LABEL}={stack}", resourceVersion="0")
    items: list[Json] = found["items"]
    return items
