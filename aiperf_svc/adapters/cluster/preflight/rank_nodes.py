"""Decides whether a cluster has the nodes that a workload's ranks ask for. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiperf_svc.adapters.cluster.preflight.capacity import Room, admits
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.pods import PodPlan

NAME = "rank nodes"


def judge_rank_nodes(
    ranks: PodPlan, nodes: Sequence[Mapping[str, Any]], free: Sequence[Room], *, can_grow: bool
) -> Check:
    """Check the nodes. `free` are those that take pods; `can_grow`: the cluster adds nodes by
    itself."""
    named = dict.fromkeys(each.node for each in ranks.sets if each.node)
    if named:
        return _judge_named(list(named), nodes, free)
    if ranks.replicas_on != "apart":
        return Check(NAME, "ok", f"{ranks.replicas} ranks may share nodes")
    suitable = [room.name for room in free if admits(room, ranks)]
    said = f"{ranks.replicas} ranks apart need {ranks.replicas} nodes"
    if len(suitable) >= ranks.replicas:
        return Check(NAME, "ok", f"{said}; {len(suitable)} are suitable")
    has = f"{said}, and {len(suitable)} of the cluster's {len(nodes)} are suitable"
    if can_grow:
        return Check(NAME, "warning", f"{has}: the cluster has to add nodes")
    return Check(
        NAME,
        "failed",
        has,
        "set deployment.ranks.nodes to any or together, or add nodes",
        is_config_error=True,
    )


def _judge_named(
    named: Sequence[str], nodes: Sequence[Mapping[str, Any]], free: Sequence[Room]
) -> Check:
    there = {node["metadata"]["name"] for node in nodes}
    missing = [name for name in named if name not in there]
    if missing:
        return Check(
            NAME,
            "failed",
            f"the cluster has no node {', '.join(missing)}; it has {', '.join(sorted(there))}",
            "correct deployment.ranks.nodes",
            is_config_error=True,
        )
    closed = [name for name in named if name not in {room.name for room in free}]
    if closed:
        words = f"{', '.join(closed)}: not ready, or closed for new pods"
        return Check(NAME, "failed", words, "open the node, or change deployment.ranks.nodes")
    return Check(NAME, "ok", f"{', '.join(named)} are there")
