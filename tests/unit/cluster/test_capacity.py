"""Whether a stack's pods fit on nodes."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.capacity import judge_capacity, rooms, used_by_node
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import load_benchmark, parse_benchmark
from tests.support.plans import make_plan, named, node, plan_it


def _judge(
    plan: StackPlan, nodes: list[Any], pods: tuple[Any, ...] = (), *, can_grow: bool = False
) -> Check:
    free = rooms(nodes, pods, stack="bench")
    return judge_capacity(plan, free, can_grow=can_grow, knows_pods=True)


def _user(cpu: str, *, label: str = "", phase: str = "Running") -> dict[str, Any]:
    labels = {STACK_LABEL: label} if label else {}
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    return named(
        "other",
        metadata={"labels": labels},
        spec={"nodeName": "n", "containers": containers},
        status={"phase": phase},
    )


def test_a_large_node_takes_everything() -> None:
    check = _judge(make_plan(), [node()])
    assert check.state == "ok"
    assert check.detail.startswith(f"{make_plan().totals.pods} pods with ")


def test_pods_do_not_spread_over_what_is_left_of_several_nodes() -> None:
    plan = make_plan(pods={"records-manager": {"cpu": 4}})
    check = _judge(plan, [node(f"n{i}", cpu="3") for i in range(20)])
    assert check.state == "failed"
    assert check.detail.endswith("no room for records-manager (4 CPU, 2Gi memory)")


def _committed(stack: str) -> StackPlan:
    path = Path(__file__).parents[3] / "stacks" / f"Pulumi.{stack}.yaml"
    return plan_it(load_benchmark(path), stack="bench", version="1")


def test_a_large_stack_without_room_is_one_short_line() -> None:
    check = _judge(_committed("bench-100k"), [node(cpu="2", memory="7Gi")])
    assert check.state == "failed"
    assert check.detail.startswith(
        "256 pods with 260.26 CPU, 172.3Gi memory wanted, 2 CPU, 7Gi memory free on 1 node: "
        "no room for 200 worker, 50 record-processor, "
    )
    assert check.detail.count("no room") == 1
    assert len(check.detail) < 300


@pytest.mark.parametrize("stack", ["bench-iperf", "bench-mpi"])
def test_the_stacks_of_two_ranks_fit_two_nodes_of_two_cores(stack: str) -> None:
    nodes = [node(name, cpu="1900m", memory="6Gi") for name in ("a", "b")]
    check = _judge(_committed(stack), nodes, (_user("300m"),))
    assert check.state == "ok", check.detail


def test_ranks_apart_have_no_room_on_one_node() -> None:
    check = _judge(_committed("bench-iperf"), [node()])
    assert check.detail.endswith("no room for 1 of 2 rank")


def test_what_others_use_is_not_free() -> None:
    assert _judge(make_plan(), [node(cpu="16")]).state == "ok"
    assert _judge(make_plan(), [node(cpu="16")], (_user("15"),)).state == "failed"


@pytest.mark.parametrize(
    "own", [_user("15", label="bench"), _user("15", phase="Succeeded")], ids=["own", "ended"]
)
def test_the_stacks_own_pods_and_ended_ones_take_no_room(own: dict[str, Any]) -> None:
    assert _judge(make_plan(), [node(cpu="16")], (own,)).state == "ok"


@pytest.mark.parametrize(
    "spec",
    [{"unschedulable": True}, {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}],
    ids=["cordoned", "tainted"],
)
def test_nodes_that_take_no_pods_do_not_count(spec: dict[str, Any]) -> None:
    assert _judge(make_plan(), [node(spec=spec)]).state == "failed"


def test_a_tolerated_taint_keeps_nobody_out() -> None:
    tainted = node(spec={"taints": [{"key": "spot", "value": "v", "effect": "NoSchedule"}]})
    assert _judge(make_plan(), [tainted]).state == "failed"
    plan = make_plan(placement={"tolerations": [{"key": "spot"}]})
    assert _judge(plan, [tainted]).state == "ok"


def test_nodes_without_the_labels_asked_for_do_not_count() -> None:
    plan = make_plan(pods={"worker": {"placement": {"node_selector": {"pool": "load"}}}})
    check = _judge(plan, [node()])
    assert check.state == "failed"
    assert check.detail.endswith(
        "no room for 2 worker: no node has the labels and taints asked for"
    )
    assert _judge(plan, [node(), node("m", labels={"pool": "load"})]).state == "ok"


def test_missing_gpus_are_named_by_their_resource() -> None:
    target = {"kind": "custom", "image": "x:1", "gpu": {"count": 2}}
    check = _judge(make_plan(target=target), [node()])
    assert check.state == "failed"
    assert check.detail.endswith("no suitable node offers nvidia.com/gpu")
    offers = {"nvidia.com/gpu": "2"}
    assert _judge(make_plan(target=target), [node(offers=offers)]).state == "ok"


def test_a_cluster_that_adds_nodes_is_only_warned_about() -> None:
    check = _judge(make_plan(), [node(cpu="1")], can_grow=True)
    assert check.state == "warning"
    assert check.detail.endswith("the cluster has to add nodes")


def test_a_node_that_has_not_said_what_it_offers_yet_has_no_room() -> None:
    new = {"metadata": {"name": "new"}, "status": {"conditions": node()["status"]["conditions"]}}
    assert [room.free for room in rooms([new], [], stack="s")] == [{}]


def test_a_native_sidecar_of_another_pod_uses_its_node_too() -> None:
    asked = {"resources": {"requests": {"cpu": "500m"}}}
    spec = {
        "nodeName": "n",
        "containers": [asked],
        "initContainers": [{**asked, "restartPolicy": "Always"}, asked],
    }
    found = used_by_node([{"metadata": {}, "spec": spec, "status": {"phase": "Running"}}])
    assert found["n"]["cpu"] == 1.0


def _in_jobs(*cpus: str, parallel: int = 1) -> StackPlan:
    """A stack of Jobs whose servers ask for so many CPUs."""
    data = {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"duration": "1s", "concurrency": 1},
        "experiment": {
            "product": {"deployment.target.cpu": list(cpus)},
            "parallel": parallel,
            "fan_out": "jobs",
        },
        "deployment": {"target": {"kind": "mock"}},
    }
    return plan_it(parse_benchmark(data, "the test"), stack="bench", version="1")


def test_indexes_of_several_jobs_may_wait_for_each_other() -> None:
    plan = _in_jobs("5", "5.5", "6")
    assert [job.pod.replicas for job in plan.jobs] == [1, 1, 1]
    assert _judge(plan, [node(cpu="16")]).state == "ok"
    assert _judge(_in_jobs("5", "20"), [node(cpu="16")]).state == "failed"
