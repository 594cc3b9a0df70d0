"""Decides whether a cluster's nodes have room for a stack's pods, whether the nodes suit the ranks,
and which of several waiting stacks fits.

The largest pods are placed first, by requests, selectors and taints. The real scheduler applies
more rules.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import format_quantity, parse_quantity
from aiperf_svc.config.placement import Toleration
from aiperf_svc.core.cluster.check import Check, State
from aiperf_svc.core.cluster.conditions import has_ended, is_ready
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.footprint import check_limits
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.pods import PodPlan
from aiperf_svc.plan.stack import StackPlan

STORAGE = "ephemeral-storage"
BLOCKING = ("NoSchedule", "NoExecute")
AUTOSCALERS = ("karpenter.sh", "autoscaling.x-k8s.io")
"""API groups of autoscalers that add nodes for pending pods."""
RANK_NODES = "rank nodes"


class Room(msgspec.Struct):
    """Free resources of one node."""

    name: str
    labels: dict[str, str]
    taints: list[dict[str, str]]
    free: dict[str, float]
    """Amount of each resource: cpu in cores, memory in bytes, pods, and extended resources."""


def rooms(nodes: Iterable[Json], pods: Iterable[Json], *, stack: str) -> list[Room]:
    """Return the schedulable nodes with the resources that other pods leave free. The stack's own
    pods do not count, because they are replaced."""
    others = (p for p in pods if (p["metadata"].get("labels") or {}).get(STACK_LABEL) != stack)
    used = used_by_node(others)
    return [
        Room(
            name=node["metadata"]["name"],
            labels=node["metadata"].get("labels") or {},
            taints=node.get("spec", {}).get("taints") or [],
            free={
                resource: parse_quantity(value)
                - used.get(node["metadata"]["name"], {}).get(resource, 0.0)
                for resource, value in (node["status"].get("allocatable") or {}).items()
            },
        )
        for node in nodes
        if not node.get("spec", {}).get("unschedulable") and is_ready(node)
    ]


def used_by_node(pods: Iterable[Json]) -> dict[str, dict[str, float]]:
    """Return the requests and the number of pods that have not ended, by node and resource."""
    used: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node and not has_ended(pod):
            used[node]["pods"] += 1
            for resource, value in _requests(pod).items():
                used[node][resource] += value
    return {node: dict(each) for node, each in used.items()}


def _requests(pod: Json) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    sidecars = (
        each
        for each in pod["spec"].get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    )
    for container in (*(pod["spec"].get("containers") or ()), *sidecars):
        for resource, value in (container.get("resources", {}).get("requests") or {}).items():
            total[resource] += parse_quantity(value)
    return total


def node_requests(pod: PodPlan) -> dict[str, float]:
    requests = pod.total
    requested = {
        "cpu": requests.cpu_millis / 1000,
        "memory": float(requests.memory_bytes),
        "pods": 1.0,
    }
    if requests.storage_bytes:
        requested[STORAGE] = float(requests.storage_bytes)
    if requests.gpu:
        requested[requests.gpu.resource] = float(requests.gpu.count)
    return requested | {name: float(number) for name, number in requests.devices.items()}


def on_nodes(plan: StackPlan, free: Iterable[Room]) -> StackPlan:
    """Return the plan with a pod of each DaemonSet of its release for each node that admits it. One
    whose nodes follow from an affinity counts once."""
    release, known = plan.release, list(free)
    if release is None:
        return plan
    pods = []
    for pod in release.pods:
        number = sum(admits(room, pod) for room in known)
        if number and pod.name in release.on_every_node:
            pod = msgspec.structs.replace(pod, replicas=number, replicas_on="apart")
        pods.append(pod)
    return msgspec.structs.replace(plan, release=msgspec.structs.replace(release, pods=tuple(pods)))


def judge_capacity(
    plan: StackPlan, free: Sequence[Room], *, can_grow: bool, knows_pods: bool
) -> Check:
    """Check whether all pods fit. `can_grow`: the cluster adds nodes by itself. `knows_pods`: the
    resources used by other pods are known."""
    plan = on_nodes(plan, free)
    added, where = place_pods(plan, free, plan.at_once_with_events)[1], count(len(free), "node")
    if not added:
        note = "" if knows_pods else "; the use by other pods is unknown (not allowed to list them)"
        state: State = "ok" if knows_pods else "warning"
        return Check("capacity", state, f"{_requested(plan)} fit on {where}{note}")
    _, unplaced = place_pods(plan, free)
    if not unplaced:
        more = ", ".join(f"{number:,} more {name}" for name, number in added.items())
        return Check(
            "capacity",
            "warning",
            f"{_requested(plan)} fit on {where}, but no room for what events add: {more}",
            "add nodes, or lower the replicas of events: a trial is invalid whose event fails",
        )
    missing = _missing(plan, free, unplaced)
    detail = f"{_requested(plan)} wanted, {_free_text(plan, free)} free on {where}: {missing}"
    if can_grow:
        return Check(
            "capacity",
            "warning",
            f"{detail}; the cluster has to add nodes",
            "allow enough time for that: deployment.ready_timeout",
        )
    return Check(
        "capacity",
        "failed",
        detail,
        "add nodes, lower the pods' requests (workers, deployment.pods) or change "
        "deployment.placement",
    )


def judge_limits(plan: StackPlan, free: Iterable[Room]) -> Check | None:
    """Check the limits of the config with the pods of DaemonSets on these nodes; None if they
    hold."""
    try:
        check_limits(plan.config.deployment.limits, on_nodes(plan, free).footprint)
    except ConfigError as error:
        return Check("limits", "failed", str(error), is_config_error=True)
    return None


def place_pods(
    plan: StackPlan, free: Sequence[Room], replicas: Mapping[str, int] | None = None
) -> tuple[list[Room], Counter[str]]:
    """Place the pods of a stack: `replicas` of each pod by name, or the numbers in the plan.
    Returns the free resources of the nodes afterwards, and the number of replicas without room by
    pod. The indexes of a Job may wait for those of other Jobs."""
    nodes, counts = _copies(free), replicas or {}
    of_jobs = {job.pod.name for job in plan.jobs}
    largest_first = sorted(plan.scheduled, key=lambda pod: pod.size, reverse=True)
    unplaced: Counter[str] = Counter()
    for pod in largest_first:
        if pod.name not in of_jobs:
            unplaced[pod.name] = _place_pod(pod, nodes, counts.get(pod.name, pod.replicas))
    without_jobs = _copies(nodes)
    for pod in largest_first:
        if pod.name in of_jobs and _place_pod(pod, nodes, pod.replicas):
            unplaced[pod.name] = _place_pod(pod, _copies(without_jobs), pod.replicas)
    return nodes, +unplaced


def _copies(rooms: Sequence[Room]) -> list[Room]:
    return [msgspec.structs.replace(room, free=dict(room.free)) for room in rooms]


def _place_pod(pod: PodPlan, nodes: Sequence[Room], replicas: int) -> int:
    """Place replicas of a pod; return how many have no room."""
    requested, left = node_requests(pod), replicas
    per_node = 1 if pod.replicas_on == "apart" else left
    for room in (each for each in nodes if admits(each, pod)):
        placed = min(left, per_node, _fitting(room, requested))
        for resource, value in _reported(room, requested).items():
            room.free[resource] = room.free.get(resource, 0.0) - value * placed
        left -= placed
    return left


def _fitting(room: Room, requested: Mapping[str, float]) -> int:
    """Return the number of such pods that fit on a node."""
    needed = _reported(room, requested).items()
    return max(0, min(int(room.free.get(r, 0.0) / value + 1e-9) for r, value in needed if value))


def _reported(room: Room, requested: Mapping[str, float]) -> dict[str, float]:
    """Return the requested resources that a node reports. Disk does not count on a node that does
    not report it."""
    return {r: value for r, value in requested.items() if r != STORAGE or r in room.free}


def admits(room: Room, pod: PodPlan) -> bool:
    """Return whether a pod may run on a node, judged by labels and taints."""
    placement = pod.placement
    return (
        all(room.labels.get(key) == value for key, value in placement.node_selector.items())
        and all(room.labels.get(key) in values for key, values in placement.require_nodes.items())
        and all(
            any(_tolerates(each, taint) for each in placement.tolerations)
            for taint in room.taints
            if taint.get("effect") in BLOCKING
        )
    )


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    if toleration.effect and toleration.effect != taint.get("effect"):
        return False
    if toleration.key and toleration.key != taint.get("key"):
        return False
    return toleration.operator == "Exists" or toleration.value == taint.get("value", "")


def _requested(plan: StackPlan) -> str:
    totals = plan.totals
    cpu = format_quantity(totals.cpu_millis / 1000, "cpu")
    memory = format_quantity(totals.memory_bytes, "memory")
    gpus = f", {count(totals.gpus, 'GPU')}" if totals.gpus else ""
    return f"{count(totals.pods, 'pod')} with {cpu} CPU, {memory} memory{gpus}"


def _free_text(plan: StackPlan, free: Sequence[Room]) -> str:
    """Describe the total free resources of all nodes."""
    gpus = {pod.requests.gpu.resource for pod in plan.scheduled if pod.requests.gpu}
    names = {"cpu": "CPU", "memory": "memory", **{name: name for name in sorted(gpus)}}
    left = {r: sum(max(room.free.get(r, 0.0), 0.0) for room in free) for r in names}
    return ", ".join(f"{format_quantity(left[r], r)} {name}" for r, name in names.items())


def _missing(plan: StackPlan, free: Sequence[Room], unplaced: Mapping[str, int]) -> str:
    """Describe the pods that have no room, grouped by reason."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for pod in sorted(plan.scheduled, key=lambda pod: unplaced.get(pod.name, 0), reverse=True):
        number = unplaced.get(pod.name, 0)
        if not number:
            continue
        some = f"{number:,} " if number == pod.replicas else f"{number:,} of {pod.replicas:,} "
        detail = pod.name if pod.replicas == 1 else some + pod.name
        why = _reason(pod, free)
        if not why and not any(_fits(room, pod) for room in free):
            detail += f" ({_request_text(pod, free)})"
        groups[why].append(detail)
    return "; ".join(f"no room for {', '.join(pods)}{why}" for why, pods in groups.items())


def _fits(room: Room, pod: PodPlan) -> bool:
    return admits(room, pod) and _fitting(room, node_requests(pod)) > 0


def _request_text(pod: PodPlan, free: Sequence[Room]) -> str:
    counts_disk = any(STORAGE in room.free for room in free)
    requested = {r: v for r, v in node_requests(pod).items() if r != STORAGE or counts_disk}
    del requested["pods"]
    names = {"cpu": "CPU"}
    return ", ".join(f"{format_quantity(v, r)} {names.get(r, r)}" for r, v in requested.items())


def _reason(pod: PodPlan, free: Sequence[Room]) -> str:
    """Return the reason why a pod has no room; empty if it only lacks CPU, memory or disk."""
    suitable = [room for room in free if admits(room, pod)]
    if not suitable:
        return ": no node matches its selectors and tolerations"
    gpu = [pod.requests.gpu.resource] if pod.requests.gpu else []
    for resource in (*gpu, *pod.total.devices):
        if not any(resource in room.free for room in suitable):
            return f": no suitable node offers {resource}"
    return "" if len(suitable) == len(free) else f" on the {len(suitable)} suitable nodes"


async def adds_nodes(cluster: Cluster) -> bool:
    """Return whether the cluster has an autoscaler for nodes. Raises Unreachable."""
    path = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
    try:
        groups = (await cluster.get("/apis")).get("groups") or ()
        if {group["name"] for group in groups}.isdisjoint(AUTOSCALERS):
            await cluster.get(path)
    except Refused:
        return False
    return True


def judge_rank_nodes(
    ranks: PodPlan, nodes: Sequence[Json], free: Sequence[Room], *, can_grow: bool
) -> Check:
    """Check whether the cluster has the nodes that the ranks need. `free` are the nodes that accept
    pods. `can_grow`: the cluster adds nodes by itself."""
    named = dict.fromkeys(each.node for each in ranks.sets if each.node)
    if named:
        return _judge_named(list(named), nodes, free)
    if ranks.replicas_on != "apart":
        return Check(RANK_NODES, "ok", f"{ranks.replicas} ranks may share nodes")
    suitable = [room.name for room in free if admits(room, ranks)]
    needed = f"{ranks.replicas} ranks apart need {ranks.replicas} nodes"
    if len(suitable) >= ranks.replicas:
        return Check(RANK_NODES, "ok", f"{needed}; {len(suitable)} are suitable")
    detail = f"{needed}, and {len(suitable)} of the cluster's {len(nodes)} are suitable"
    if can_grow:
        return Check(RANK_NODES, "warning", f"{detail}: the cluster has to add nodes")
    return Check(
        RANK_NODES,
        "failed",
        detail,
        "set deployment.ranks.nodes to any or together, or add nodes",
        is_config_error=True,
    )


def _judge_named(named: Sequence[str], nodes: Sequence[Json], free: Sequence[Room]) -> Check:
    existing = {node["metadata"]["name"] for node in nodes}
    missing = [name for name in named if name not in existing]
    if missing:
        return Check(
            RANK_NODES,
            "failed",
            f"the cluster has no node {', '.join(missing)}; it has {', '.join(sorted(existing))}",
            "correct deployment.ranks.nodes",
            is_config_error=True,
        )
    closed = [name for name in named if name not in {room.name for room in free}]
    if closed:
        detail = f"{', '.join(closed)}: not ready, or cordoned"
        return Check(
            RANK_NODES, "failed", detail, "open the node, or change deployment.ranks.nodes"
        )
    return Check(RANK_NODES, "ok", f"the cluster has {', '.join(named)}")


class Placed(NamedTuple):
    """The nodes of a cluster, and the pods that are assigned to a node."""

    nodes: Sequence[Json]
    pods: Sequence[Json]


async def read_placed(cluster: Cluster, *, is_auto: bool) -> Placed | None:
    """Return the nodes and pods that limit the number of stacks of an experiment. None if nothing
    limits it: the user may not list them, or the cluster adds nodes for pods.

    With `experiment.parallel: auto` (`is_auto`), the free room determines the number of stacks.
    Then only existing nodes count. Raises ConfigError if the user may not list them, Unreachable.
    """
    if not is_auto and await adds_nodes(cluster):
        return None
    try:
        nodes = (await cluster.get("/api/v1/nodes"))["items"]
        pods = (await cluster.get("/api/v1/pods", fieldSelector="spec.nodeName!="))["items"]
    except Refused as error:
        if is_auto:
            raise ConfigError(
                "experiment.parallel: auto needs to list nodes and pods, which is not allowed "
                f"({error}); give the number of stacks"
            ) from error
        return None
    return Placed(nodes, pods)


def fits_beside(
    running: Sequence[StackPlan], plan: StackPlan, nodes: Sequence[Json], pods: Sequence[Json]
) -> bool:
    """Return whether a stack fits in addition to the running ones.

    A running stack counts by its plan until all its pods have nodes, and then by its pods.
    """
    every = rooms(nodes, (), stack="")
    running, plan = [on_nodes(each, every) for each in running], on_nodes(plan, every)
    starting = [each for each in running if _with_nodes(each, pods) < each.totals.pods]
    names = {each.identity.stack for each in starting}
    free = rooms(nodes, [pod for pod in pods if _stack_of(pod) not in names], stack="")
    for each in starting:
        free, _ = place_pods(each, free)
    return not place_pods(plan, free)[1]


def _with_nodes(plan: StackPlan, pods: Sequence[Json]) -> int:
    """Return how many pods of a stack are assigned to a node and have not ended."""
    return sum(
        _stack_of(pod) == plan.identity.stack
        and not has_ended(pod)
        and bool(pod.get("spec", {}).get("nodeName"))
        for pod in pods
    )


def _stack_of(pod: Json) -> str | None:
    name: str | None = (pod["metadata"].get("labels") or {}).get(STACK_LABEL)
    return name
