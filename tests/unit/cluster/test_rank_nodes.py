"""Whether a cluster has the nodes that ranks ask for."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.capacity import rooms
from aiperf_svc.adapters.cluster.preflight.rank_nodes import judge_rank_nodes
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import node, plan_it


def judged(there: list[dict[str, Any]], *, can_grow: bool = False, **ranks: Any) -> Check:
    data = {"workload": {"kind": "iperf"}, "deployment": {"ranks": ranks}}
    plan = plan_it(parse_benchmark(data, ""), stack="s", version="1")
    assert plan.ranks is not None
    free = rooms(there, [], stack="s")
    return judge_rank_nodes(plan.ranks, there, free, can_grow=can_grow)


def test_ranks_apart_need_as_many_nodes() -> None:
    assert judged([node("a"), node("b")]).state == "ok"
    refused = judged([node("a")])
    assert (refused.state, refused.is_config_error) == ("failed", True)
    assert refused.detail == ("2 ranks apart need 2 nodes, and 1 of the cluster's 1 are suitable")


def test_a_cordoned_or_tainted_node_does_not_count() -> None:
    taint = {"key": "other", "effect": "NoSchedule"}
    for spec in ({"unschedulable": True}, {"taints": [taint]}):
        assert judged([node("a"), node("b", spec=spec)]).state == "failed"


def test_a_cluster_that_adds_nodes_is_only_warned_about() -> None:
    assert judged([node("a")], can_grow=True).state == "warning"


@pytest.mark.parametrize("nodes", ["any", "together"])
def test_other_ranks_share_nodes(nodes: str) -> None:
    assert judged([node("a")], nodes=nodes).state == "ok"


def test_a_name_that_no_node_has_is_refused_with_those_that_there_are() -> None:
    assert judged([node("a"), node("b")], nodes=["a", "b"]).state == "ok"
    refused = judged([node("a"), node("b")], nodes=["a", "c"])
    assert (refused.state, refused.is_config_error) == ("failed", True)
    assert refused.detail == "the cluster has no node c; it has a, b"


def test_a_named_node_that_takes_no_pods_is_said() -> None:
    nodes = [node("a"), node("b", spec={"unschedulable": True})]
    assert "b: not ready, or closed" in judged(nodes, nodes=["a", "b"]).detail
