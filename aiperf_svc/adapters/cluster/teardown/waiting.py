"""Says what the removal of a stack waits for, and why: nodes that are not ready, finalizers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.leaks import NAMESPACE, LeakReport
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.plan.identity import STACK_LABEL

Object = Mapping[str, Any]
NAMED = 3
"""Most objects and nodes that are named in one line."""


async def describe_wait(cluster: Cluster, report: LeakReport, *, stack: str) -> str:
    """Return what is there and why it is not gone, in one line; empty if nothing is left. Raises
    Unreachable."""
    if not report.left:
        return ""
    pods: list[Object] = []
    # Pods of Jobs and of ranks carry the stack's label too.
    for namespace in {each.namespace for each in report.left if each.kind == "Pod"}:
        try:
            path = f"/api/v1/namespaces/{namespace}/pods"
            pods += (await cluster.get(path, labelSelector=f"{STACK_LABEL}={stack}"))["items"]
        except Refused:
            continue
    nodes: dict[str, Object] = {}
    for name in sorted({each["spec"].get("nodeName", "") for each in pods} - {""})[:NAMED]:
        try:
            nodes[name] = await cluster.get(f"/api/v1/nodes/{name}")
        except Refused as error:
            if error.status == 404:
                nodes[name] = {}
    return wait_in_words(report.left, pods, nodes)


def wait_in_words(
    left: Sequence[ObjectRef], pods: Iterable[Object], nodes: Mapping[str, Object]
) -> str:
    """Return what a removal waits for. `nodes` has the nodes that may be read, by name; an empty
    object: the node is gone."""
    by_node: defaultdict[str, int] = defaultdict(int)
    for each in pods:
        by_node[each["spec"].get("nodeName", "")] += 1
    parts = [
        f"{_pods(number)} on node {name}{_node_problem(nodes.get(name))}" if name else
        f"{_pods(number)} on no node"
        for name, number in sorted(by_node.items())[:NAMED]
    ]  # fmt: skip
    held = [each for each in left if each.finalizers and each.is_going]
    parts += [
        f"{each.kind} {_place(each)}, until the owner of the finalizer "
        f"{', '.join(each.finalizers)} removes it"
        for each in held[:NAMED]
    ]
    if not parts:
        # Namespaces go last, and say what they wait for.
        first = next((each for each in left if each.kind != NAMESPACE.kind), left[0])
        parts = [str(first)]
    others = len(left) - sum(by_node.values()) - len(held[:NAMED]) - (not (by_node or held))
    more = f"; {others} other object{'s' * (others > 1)}" if others > 0 else ""
    return f"{'; '.join(parts)}{more}"


def _pods(number: int) -> str:
    return f"{number} pod{'s' * (number > 1)}"


def _place(found: ObjectRef) -> str:
    return f"{found.namespace}/{found.name}" if found.namespace else found.name


def _node_problem(node: Object | None) -> str:
    """Return why the kubelet of a node does not end its pods; empty if it should."""
    if node is None:
        return ""
    if not node:
        return ", which is gone"
    for each in node.get("status", {}).get("conditions") or ():
        if each["type"] == "Ready" and each["status"] != "True":
            since = each.get("lastTransitionTime", "")
            why = one_line(each.get("message") or each.get("reason") or "")
            return f", which is not ready since {since}" + (f" ({why})" if why else "")
    return ""
