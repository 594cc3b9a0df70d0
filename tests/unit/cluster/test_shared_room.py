"""Which of several stacks has room beside those that are there or come up."""

from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.cluster.preflight.shared_room import SharedRoom, first_with_room
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.stack import StackPlan
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import make_plan, named, node

TARGET = {"kind": "mock", "cpu": 4}


def stack(name: str, **deployment: Any) -> StackPlan:
    """A stack whose largest pod takes four cores."""
    plan = make_plan(load={"concurrency": 1, "requests": 1}, **{"target": TARGET, **deployment})
    return msgspec.structs.replace(
        plan, identity=msgspec.structs.replace(plan.identity, stack=name)
    )


def pod_of(name: str, cpu: str, *, on: str = "n") -> dict[str, Any]:
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    return named(
        "pod",
        metadata={"labels": {STACK_LABEL: name} if name else {}},
        spec={"nodeName": on, "containers": containers},
        status={"phase": "Running"},
    )


def all_pods(plan: StackPlan, *, on: str = "n") -> list[dict[str, Any]]:
    each = f"{plan.totals.cpu_millis / plan.totals.pods / 1000}"
    return [pod_of(plan.identity.stack, each, on=on)] * plan.totals.pods


A, B, C = stack("a"), stack("b"), stack("c")
CPU = A.totals.cpu_millis / 1000
TWO = [node(cpu=str(CPU * 2 + 1))]


def test_a_stack_that_comes_up_counts_by_its_plan_and_one_that_is_up_by_its_pods() -> None:
    assert first_with_room([A], [B], TWO, []) == 0
    assert first_with_room([A, B], [C], TWO, []) is None
    # A part of its pods has nodes already.
    assert first_with_room([A], [B], TWO, all_pods(A)[:3]) == 0
    assert first_with_room([A, B], [C], TWO, [*all_pods(A), *all_pods(B)[:3]]) is None
    # All have, on a node where they leave less room than on paper.
    pair = [node("n", cpu=str(CPU + 1)), node("m", cpu="3")]
    assert first_with_room([A], [B], pair, all_pods(A, on="m")) == 0
    assert first_with_room([A], [B], pair, all_pods(A, on="n")) is None


def test_what_others_use_is_no_room() -> None:
    assert first_with_room([A], [B], TWO, [pod_of("", str(CPU))]) is None


def test_a_stack_that_does_not_fit_lets_one_of_other_nodes_go_first() -> None:
    def on(kind: str) -> dict[str, Any]:
        placement = {"node_selector": {"gpu": kind}}
        return {"placement": placement, "target": {**TARGET, "placement": placement}}

    nodes = [
        node("n", cpu=str(CPU + 1), labels={"gpu": "a"}),
        node("m", cpu=str(CPU + 1), labels={"gpu": "b"}),
    ]
    running, waiting = [stack("a", **on("a"))], [stack("b", **on("a")), stack("c", **on("b"))]
    assert first_with_room(running, waiting, nodes, []) == 1


def cluster(*nodes: Any, **more: Any) -> FakeCluster:
    return FakeCluster(
        {
            "/api/v1/nodes": {"items": list(nodes)},
            "/api/v1/pods": {"items": []},
            "/apis": {"groups": []},
            **more,
        }
    )


@pytest.mark.parametrize(("is_auto", "found"), [(True, None), (False, 0)])
async def test_a_number_of_stacks_lets_a_cluster_that_can_grow_add_nodes(
    *, is_auto: bool, found: int | None
) -> None:
    grows = cluster(*TWO, **{"/apis": {"groups": [{"name": "karpenter.sh"}]}})
    assert await SharedRoom(grows.typed, is_auto=is_auto).find([A, B], [C]) == found
    assert await SharedRoom(cluster(*TWO).typed, is_auto=is_auto).find([A, B], [C]) is None


async def test_a_number_of_stacks_needs_no_right_to_list_nodes_and_auto_does() -> None:
    hidden = FakeCluster()
    assert await SharedRoom(hidden.typed, is_auto=False).find([A, B], [C]) == 0
    with pytest.raises(ConfigError, match="auto needs to list nodes and pods"):
        await SharedRoom(hidden.typed, is_auto=True).find([], [C])
