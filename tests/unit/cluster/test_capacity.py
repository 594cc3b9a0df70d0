"""Whether a stack's pods fit onto the nodes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.cluster.preflight.capacity import (
    fits_beside,
    judge_capacity,
    judge_limits,
    judge_rank_nodes,
    read_placed,
    rooms,
    used_by_node,
)
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import load_benchmark, parse_benchmark
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import make_plan, named, node, to_plan
from tests.support.releases import deployment, release_plan
from tests.support.small_configs import small_jobs


def _judge(
    plan: StackPlan, nodes: list[Any], pods: tuple[Any, ...] = (), *, can_grow: bool = False
) -> Check:
    free = rooms(nodes, pods, stack="bench")
    return judge_capacity(plan, free, can_grow=can_grow, knows_pods=True)


def _user(cpu: str, *, label: str = "", phase: str = "Running", on: str = "n") -> dict[str, Any]:
    labels = {STACK_LABEL: label} if label else {}
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    return named(
        "other",
        metadata={"labels": labels},
        spec={"nodeName": on, "containers": containers},
        status={"phase": phase},
    )


def test_large_node_has_room_for_all_pods() -> None:
    check = _judge(make_plan(), [node()])
    assert check.state == "ok"
    assert check.detail.startswith(f"{make_plan().totals.pods} pods with ")


def test_a_pod_needs_room_on_one_node() -> None:
    plan = make_plan(pods={"records-manager": {"cpu": 4}})
    check = _judge(plan, [node(f"n{i}", cpu="3") for i in range(20)])
    assert check.state == "failed"
    assert check.detail.endswith("no room for records-manager (4 CPU, 2Gi memory)")


def test_pods_that_events_add_need_room() -> None:
    data = {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"request_rate": 1, "duration": "1m"},
        "events": [{"do": "scale", "replicas": 4, "at": "20s"}],
        "deployment": {"target": {"kind": "custom", "image": "v:1", "cpu": 20}},
    }
    plan = to_plan(parse_benchmark(data, "the test"), stack="bench", version="1")
    nodes = [node(f"n{i}", cpu="24") for i in range(3)]
    check = _judge(plan, nodes)
    assert (check.state, check.detail.split(": ")[-1]) == ("warning", "1 more target")
    assert _judge(plan, [*nodes, node("n3", cpu="24")]).state == "ok"


def _committed(stack: str) -> StackPlan:
    path = Path(__file__).parents[3] / "stacks" / f"Pulumi.{stack}.yaml"
    return to_plan(load_benchmark(path), stack="bench", version="1")


def test_large_stack_without_room_is_one_short_line() -> None:
    check = _judge(_committed("bench-100k"), [node(cpu="2", memory="7Gi")])
    assert check.state == "failed"
    assert check.detail.startswith(
        "256 pods with 260.26 CPU, 172.3Gi memory wanted, 2 CPU, 7Gi memory free on 1 node: "
        "no room for 200 worker, 50 record-processor, "
    )
    assert check.detail.count("no room") == 1
    assert len(check.detail) < 300


@pytest.mark.parametrize("stack", ["bench-iperf", "bench-mpi"])
def test_two_rank_stacks_fit_two_small_nodes(stack: str) -> None:
    nodes = [node(name, cpu="1900m", memory="6Gi") for name in ("a", "b")]
    check = _judge(_committed(stack), nodes, (_user("300m"),))
    assert check.state == "ok", check.detail


def test_ranks_apart_have_no_room_on_one_node() -> None:
    check = _judge(_committed("bench-iperf"), [node()])
    assert check.detail.endswith("no room for 1 of 2 rank")


def test_other_pods_reduce_the_free_room() -> None:
    assert _judge(make_plan(), [node(cpu="16")]).state == "ok"
    assert _judge(make_plan(), [node(cpu="16")], (_user("15"),)).state == "failed"


@pytest.mark.parametrize(
    "own", [_user("15", label="bench"), _user("15", phase="Succeeded")], ids=["own", "ended"]
)
def test_own_and_ended_pods_count_as_free(own: dict[str, Any]) -> None:
    assert _judge(make_plan(), [node(cpu="16")], (own,)).state == "ok"


def test_cordoned_node_has_no_room() -> None:
    assert _judge(make_plan(), [node(spec={"unschedulable": True})]).state == "failed"


def test_only_a_tolerated_taint_is_ignored() -> None:
    tainted = node(spec={"taints": [{"key": "spot", "value": "v", "effect": "NoSchedule"}]})
    assert _judge(make_plan(), [tainted]).state == "failed"
    plan = make_plan(placement={"tolerations": [{"key": "spot"}]})
    assert _judge(plan, [tainted]).state == "ok"


def test_nodes_without_the_wanted_labels_have_no_room() -> None:
    plan = make_plan(pods={"worker": {"placement": {"node_selector": {"pool": "load"}}}})
    check = _judge(plan, [node()])
    assert check.state == "failed"
    assert check.detail.endswith(
        "no room for 2 worker: no node matches its selectors and tolerations"
    )
    assert _judge(plan, [node(), node("m", labels={"pool": "load"})]).state == "ok"


def test_missing_gpus_are_named_by_their_resource() -> None:
    target = {"kind": "custom", "image": "x:1", "gpu": {"count": 2}}
    check = _judge(make_plan(target=target), [node()])
    assert check.state == "failed"
    assert check.detail.endswith("no suitable node offers nvidia.com/gpu")
    offers = {"nvidia.com/gpu": "2"}
    assert _judge(make_plan(target=target), [node(offers=offers)]).state == "ok"


def test_growing_cluster_is_only_a_warning() -> None:
    check = _judge(make_plan(), [node(cpu="1")], can_grow=True)
    assert check.state == "warning"
    assert check.detail.endswith("the cluster has to add nodes")


def test_node_without_allocatable_has_no_room() -> None:
    new = {"metadata": {"name": "new"}, "status": {"conditions": node()["status"]["conditions"]}}
    assert [room.free for room in rooms([new], [], stack="s")] == [{}]


def test_native_sidecars_take_room() -> None:
    resources = {"resources": {"requests": {"cpu": "500m"}}}
    spec = {
        "nodeName": "n",
        "containers": [resources],
        "initContainers": [{**resources, "restartPolicy": "Always"}, resources],
    }
    found = used_by_node([{"metadata": {}, "spec": spec, "status": {"phase": "Running"}}])
    assert found["n"]["cpu"] == 1.0


def _in_jobs(*cpus: str) -> StackPlan:
    """Return a stack of Jobs whose servers request these CPUs."""
    data = small_jobs(product={"deployment.target.cpu": list(cpus)}, parallel=1)
    return to_plan(parse_benchmark(data, "the test"), stack="bench", version="1")


def test_jobs_that_fit_one_by_one_are_accepted() -> None:
    plan = _in_jobs("5", "5.5", "6")
    assert [job.pod.replicas for job in plan.jobs] == [1, 1, 1]
    assert _judge(plan, [node(cpu="16")]).state == "ok"
    assert _judge(_in_jobs("5", "20"), [node(cpu="16")]).state == "failed"


def judged(there: list[dict[str, Any]], *, can_grow: bool = False, **ranks: Any) -> Check:
    data = {"workload": {"kind": "iperf"}, "deployment": {"ranks": ranks}}
    plan = to_plan(parse_benchmark(data, ""), stack="s", version="1")
    assert plan.ranks is not None
    free = rooms(there, [], stack="s")
    return judge_rank_nodes(plan.ranks, there, free, can_grow=can_grow)


def test_ranks_apart_need_as_many_nodes() -> None:
    assert judged([node("a"), node("b")]).state == "ok"
    refused = judged([node("a")])
    assert (refused.state, refused.is_config_error) == ("failed", True)
    assert refused.detail == ("2 ranks apart need 2 nodes, and 1 of the cluster's 1 are suitable")


def test_ranks_skip_cordoned_and_tainted_nodes() -> None:
    taint = {"key": "other", "effect": "NoSchedule"}
    for spec in ({"unschedulable": True}, {"taints": [taint]}):
        assert judged([node("a"), node("b", spec=spec)]).state == "failed"


def test_growing_cluster_may_add_nodes_for_ranks() -> None:
    assert judged([node("a")], can_grow=True).state == "warning"


@pytest.mark.parametrize("nodes", ["any", "together"])
def test_other_ranks_share_nodes(nodes: str) -> None:
    assert judged([node("a")], nodes=nodes).state == "ok"


def test_unknown_node_name_lists_the_nodes() -> None:
    assert judged([node("a"), node("b")], nodes=["a", "b"]).state == "ok"
    refused = judged([node("a"), node("b")], nodes=["a", "c"])
    assert (refused.state, refused.is_config_error) == ("failed", True)
    assert refused.detail == "the cluster has no node c; it has a, b"


def test_named_node_must_accept_pods() -> None:
    nodes = [node("a"), node("b", spec={"unschedulable": True})]
    assert "b: not ready, or cordoned" in judged(nodes, nodes=["a", "b"]).detail


TARGET = {"kind": "mock", "cpu": 4}


def stack(name: str, **deployment: Any) -> StackPlan:
    """Return a stack whose largest pod requests four cores."""
    plan = make_plan(load={"concurrency": 1, "requests": 1}, **{"target": TARGET, **deployment})
    return msgspec.structs.replace(
        plan, identity=msgspec.structs.replace(plan.identity, stack=name)
    )


def all_pods(plan: StackPlan, *, on: str = "n") -> list[dict[str, Any]]:
    each = f"{plan.totals.cpu_millis / plan.totals.pods / 1000}"
    return [_user(each, label=plan.identity.stack, on=on)] * plan.totals.pods


A, B, C = stack("a"), stack("b"), stack("c")
CPU = A.totals.cpu_millis / 1000
TWO = [node(cpu=str(CPU * 2 + 1))]


def test_starting_stack_counts_by_its_plan() -> None:
    assert fits_beside([A], B, TWO, [])
    assert not fits_beside([A, B], C, TWO, [])
    # Some of its pods are already scheduled.
    assert fits_beside([A], B, TWO, all_pods(A)[:3])
    assert not fits_beside([A, B], C, TWO, [*all_pods(A), *all_pods(B)[:3]])
    # All are scheduled, on a node with less room left than calculated.
    pair = [node("n", cpu=str(CPU + 1)), node("m", cpu="3")]
    assert fits_beside([A], B, pair, all_pods(A, on="m"))
    assert not fits_beside([A], B, pair, all_pods(A, on="n"))


def test_other_pods_leave_no_room_for_a_stack() -> None:
    assert not fits_beside([A], B, TWO, [_user(str(CPU))])


def test_stack_for_other_nodes_fits_beside() -> None:
    def on(kind: str) -> dict[str, Any]:
        placement = {"node_selector": {"gpu": kind}}
        return {"placement": placement, "target": {**TARGET, "placement": placement}}

    nodes = [
        node("n", cpu=str(CPU + 1), labels={"gpu": "a"}),
        node("m", cpu=str(CPU + 1), labels={"gpu": "b"}),
    ]
    running = [stack("a", **on("a"))]
    assert not fits_beside(running, stack("b", **on("a")), nodes, [])
    assert fits_beside(running, stack("c", **on("b")), nodes, [])


def cluster(*nodes: Any, **more: Any) -> FakeCluster:
    return FakeCluster(
        {
            "/api/v1/nodes": {"items": list(nodes)},
            "/api/v1/pods": {"items": []},
            "/apis": {"groups": []},
            **more,
        }
    )


@pytest.mark.parametrize("is_auto", [True, False])
async def test_fixed_parallelism_lets_a_cluster_grow(*, is_auto: bool) -> None:
    grows = cluster(*TWO, **{"/apis": {"groups": [{"name": "karpenter.sh"}]}})
    for seen, has_always in ((grows, not is_auto), (cluster(*TWO), False)):
        placed = await read_placed(seen.typed, is_auto=is_auto)
        assert (placed is None) is has_always
        assert placed is None or not fits_beside([A, B], C, *placed)


async def test_only_auto_parallelism_needs_to_list_nodes() -> None:
    hidden = FakeCluster()
    assert await read_placed(hidden.typed, is_auto=False) is None
    with pytest.raises(ConfigError, match="auto needs to list nodes and pods"):
        await read_placed(hidden.typed, is_auto=True)


def _agent(**spec: Any) -> dict[str, Any]:
    """A DaemonSet whose pods request 2 CPU and a GPU each."""
    return {**deployment("agent", **spec), "kind": "DaemonSet"}


GPU_NODES = [node(name, offers={"nvidia.com/gpu": "1"}, labels={"gpu": "y"}) for name in "ab"]


def test_daemon_sets_need_room_on_each_node() -> None:
    plan = release_plan(_agent())
    assert _judge(plan, GPU_NODES).state == "ok"
    check = _judge(plan, [*GPU_NODES, node("c")])
    assert check.state == "failed"
    assert "no room for 1 of 3 DaemonSet/agent" in check.detail
    chosen = release_plan(_agent(nodeSelector={"gpu": "y"}))
    assert _judge(chosen, [*GPU_NODES, node("c")]).state == "ok"


def test_daemon_sets_with_an_affinity_count_once() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    plan = release_plan(_agent(affinity={"nodeAffinity": required}))
    assert _judge(plan, [*GPU_NODES, node("c")]).state == "ok"


def test_daemon_sets_count_in_limits_by_nodes() -> None:
    plan = release_plan(_agent(), limits={"gpus": 1})
    assert judge_limits(plan, rooms(GPU_NODES[:1], (), stack="bench")) is None
    check = judge_limits(plan, rooms(GPU_NODES, (), stack="bench"))
    assert check is not None
    assert "gpus 2, limit 1" in check.detail
