"""Decides whether a cluster's nodes have room for a stack's pods. Pure: places the largest pods
first, by requests, selectors and taints. The real scheduler also applies further rules."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.quantities import format_quantity, parse_quantity
from aiperf_svc.config.placement import Toleration
from aiperf_svc.core.cluster.check import Check, State
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.pods import PodPlan
from aiperf_svc.plan.stack import StackPlan

Object = Mapping[str, Any]
STORAGE = "ephemeral-storage"
BLOCKING = ("NoSchedule", "NoExecute")


class Room(msgspec.Struct):
    """Free resources of one node."""

    name: str
    labels: dict[str, str]
    taints: list[dict[str, str]]
    free: dict[str, float]
    """Amount by resource: cpu in cores, memory in bytes, pods, and every extended resource."""


def rooms(nodes: Iterable[Object], pods: Iterable[Object], *, stack: str) -> list[Room]:
    """Return the schedulable nodes and what other pods leave of them. The stack's own pods do not
    count, since they are replaced."""
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


def used_by_node(pods: Iterable[Object]) -> dict[str, dict[str, float]]:
    """Return what pods that have not ended request, by node and resource; also their number."""
    used: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            used[node]["pods"] += 1
            for resource, value in _requests(pod).items():
                used[node][resource] += value
    return {node: dict(each) for node, each in used.items()}


def is_ready(node: Object) -> bool:
    """Return whether a node is ready for pods."""
    conditions = node["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _requests(pod: Object) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    beside = (
        each
        for each in pod["spec"].get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    )
    for container in (*(pod["spec"].get("containers") or ()), *beside):
        for resource, value in (container.get("resources", {}).get("requests") or {}).items():
            total[resource] += parse_quantity(value)
    return total


def asked_of_node(pod: PodPlan) -> dict[str, float]:
    """Return what one replica requests from its node."""
    requests = pod.total
    asked = {
        "cpu": requests.cpu_millis / 1000,
        "memory": float(requests.memory_bytes),
        "pods": 1.0,
    }
    if requests.storage_bytes:
        asked[STORAGE] = float(requests.storage_bytes)
    if requests.gpu:
        asked[requests.gpu.resource] = float(requests.gpu.count)
    return asked | {name: float(number) for name, number in requests.devices.items()}


def judge_capacity(
    plan: StackPlan, free: Sequence[Room], *, can_grow: bool, knows_pods: bool
) -> Check:
    """Check whether all pods fit. `can_grow`: the cluster adds nodes by itself; `knows_pods`: what
    other pods use is known."""
    _, unplaced = place(plan, free)
    if not unplaced:
        note = "" if knows_pods else "; what other pods use is not known (not allowed to list them)"
        state: State = "ok" if knows_pods else "warning"
        where = "1 node" if len(free) == 1 else f"{len(free):,} nodes"
        return Check("capacity", state, f"{_asked(plan)} fit on {where}{note}")
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for pod in plan.pods:
        if unplaced[pod.name]:
            reasons[_why(pod, free)].append(
                f"{unplaced[pod.name]} of {pod.replicas} {pod.name} ({_each(pod, free)})"
            )
    lines = [f"no room for {', '.join(pods)}: {why}" for why, pods in reasons.items()]
    if can_grow:
        return Check(
            "capacity",
            "warning",
            f"{'; '.join(lines)}: the cluster has to add nodes",
            "give them time: deployment.ready_timeout",
        )
    return Check(
        "capacity",
        "failed",
        "; ".join(lines),
        "add nodes, lower the pods' requests (workers, deployment.pods) or change "
        "deployment.placement",
    )


def place(plan: StackPlan, free: Sequence[Room]) -> tuple[list[Room], Counter[str]]:
    """Place the pods of a stack. Returns what is then left of the nodes, and how many replicas of
    which pods have no room. The indexes of a Job may wait for those of the other Jobs."""
    nodes = _copies(free)
    of_jobs = {job.pod.name for job in plan.jobs}
    largest_first = sorted(plan.pods, key=lambda pod: pod.size, reverse=True)
    unplaced: Counter[str] = Counter()
    for pod in largest_first:
        if pod.name not in of_jobs:
            unplaced[pod.name] = _place_pod(pod, nodes)
    without_jobs = _copies(nodes)
    for pod in largest_first:
        if pod.name in of_jobs and _place_pod(pod, nodes):
            unplaced[pod.name] = _place_pod(pod, _copies(without_jobs))
    return nodes, +unplaced


def _copies(rooms: Sequence[Room]) -> list[Room]:
    return [msgspec.structs.replace(room, free=dict(room.free)) for room in rooms]


def _place_pod(pod: PodPlan, nodes: Sequence[Room]) -> int:
    """Place the replicas of a pod; return how many have no room."""
    asked, left = asked_of_node(pod), pod.replicas
    for room in (each for each in nodes if admits(each, pod)):
        placed = min(left, _fitting(room, asked))
        for resource, value in _counted(room, asked).items():
            room.free[resource] = room.free.get(resource, 0.0) - value * placed
        left -= placed
    return left


def _fitting(room: Room, asked: Mapping[str, float]) -> int:
    """Return how many such pods a node has room for."""
    needed = _counted(room, asked).items()
    return max(0, min(int(room.free.get(r, 0.0) / value + 1e-9) for r, value in needed))


def _counted(room: Room, asked: Mapping[str, float]) -> dict[str, float]:
    """Return the resources that a node counts. A node that does not report its disk does not count
    disk."""
    return {r: value for r, value in asked.items() if r != STORAGE or r in room.free}


def admits(room: Room, pod: PodPlan) -> bool:
    """Return whether a pod may run on a node, by labels and taints."""
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


def _asked(plan: StackPlan) -> str:
    totals = plan.totals
    gpus = f", {totals.gpus} GPUs" if totals.gpus else ""
    cpu = format_quantity(totals.cpu_millis / 1000, "cpu")
    memory = format_quantity(totals.memory_bytes, "memory")
    return f"{totals.pods} pods with {cpu} CPU, {memory} memory{gpus}"


def _each(pod: PodPlan, free: Sequence[Room]) -> str:
    asked = _said_of_node(pod, free)
    del asked["pods"]
    return ", ".join(f"{format_quantity(value, name)} {name}" for name, value in asked.items())


def _said_of_node(pod: PodPlan, free: Sequence[Room]) -> dict[str, float]:
    counts_disk = any(STORAGE in room.free for room in free)
    return {r: v for r, v in asked_of_node(pod).items() if r != STORAGE or counts_disk}


def _why(pod: PodPlan, free: Sequence[Room]) -> str:
    suitable = [room for room in free if admits(room, pod)]
    if not suitable:
        return f"none of {len(free)} nodes has the labels and taints asked for"
    gpu = [pod.requests.gpu.resource] if pod.requests.gpu else []
    for resource in (*gpu, *pod.total.devices):
        if not any(resource in room.free for room in suitable):
            return f"no suitable node offers {resource}"
    total = {
        name: sum(max(room.free.get(name, 0.0), 0.0) for room in suitable)
        for name in _said_of_node(pod, free)
    }
    left = ", ".join(f"{format_quantity(value, name)} {name}" for name, value in total.items())
    return (
        f"for the whole stack {len(suitable)} of {len(free)} nodes are suitable, with {left} free"
    )
