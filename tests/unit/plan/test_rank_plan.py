"""The pods of a workload's ranks: placement, permissions, and connections."""

from typing import Any

import pytest

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.network import Rule, StackPods
from aiperf_svc.plan.pods import PodPlan, SecretKey
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import to_plan

COMMAND = {
    "kind": "command",
    "image": "registry.example/tool:1",
    "command": ["true"],
    "duration": "10s",
    "metrics": {"time": {"unit": "s", "pattern": "([0-9]+)"}},
}


def plan_of(workload: dict[str, Any] | None = None, **ranks: Any) -> StackPlan:
    return plan_whole({"workload": {**COMMAND, **(workload or {})}, "deployment": {"ranks": ranks}})


def plan_whole(data: dict[str, Any], **options: Any) -> StackPlan:
    return to_plan(parse_benchmark(data, ""), stack="s", version="1", **options)


def ranks_of(plan: StackPlan) -> PodPlan:
    assert plan.ranks is not None
    return plan.ranks


def test_rank_pod_has_workload_image_and_courier() -> None:
    pod = ranks_of(plan_of({"ranks": 3}))
    courier, rank = pod.containers
    assert (courier.name, courier.args, courier.env["AIPERF_SERVICE"]) == (
        "courier",
        ("service",),
        "worker",
    )
    assert (rank.name, rank.image.name) == ("rank", "registry.example/tool:1")
    assert rank.command == ("sh", "/rank/rank_loop.sh", "/rank")
    assert [each.args for each in pod.preparations] == [("rank-setup", "folder")]
    assert pod.replicas == 3


def test_courier_and_rank_share_mount_paths() -> None:
    courier, rank = ranks_of(plan_of()).containers
    shared = {(v.name, v.path) for v in courier.volumes} & {(v.name, v.path) for v in rank.volumes}
    assert shared == {("rank", "/rank"), ("volume", "/volume")}


def test_image_variable_replaces_the_workload_image() -> None:
    plan = plan_whole({"workload": COMMAND}, workload_image="registry.example/other:2")
    assert ranks_of(plan).sidecars[0].image.name == "registry.example/other:2"


def test_replacing_a_pinned_rank_image_is_refused() -> None:
    pinned = {**COMMAND, "image": "registry.example/tool@sha256:" + "0a" * 32}
    words = "AIPERF_WORKLOAD_IMAGE is .*other:2, but workload.image pins another image"
    with pytest.raises(ConfigError, match=words):
        plan_whole({"workload": pinned}, workload_image="registry.example/other:2")


def test_replacing_a_tagged_rank_image_is_noted() -> None:
    plan = plan_whole({"workload": COMMAND}, workload_image="registry.example/other:2")
    assert "AIPERF_WORKLOAD_IMAGE replaces workload.image" in plan.notes[0]
    assert "image: registry.example/other:2" in plan.files["config.yaml"]


def test_kind_without_image_uses_built_one() -> None:
    plan = plan_whole({"workload": {"kind": "iperf"}})
    assert ranks_of(plan).sidecars[0].image.name == "localhost/aiperf-svc-iperf:1"


def test_totals_count_both_containers() -> None:
    plan = plan_of({"ranks": 2})
    pod = ranks_of(plan)
    courier, rank = pod.containers
    assert pod.total.cpu_millis == courier.requests.cpu_millis + rank.requests.cpu_millis
    others = sum(each.total.cpu_millis for each in plan.pods if each is not pod)
    assert plan.totals.cpu_millis == others + 2 * pod.total.cpu_millis


@pytest.mark.parametrize("layout", ["compact", "per-service"])
def test_two_core_node_fits_rank_and_services(layout: str) -> None:
    plan = plan_whole({"workload": COMMAND, "deployment": {"layout": layout}})
    (rank,) = ranks_of(plan).sidecars
    assert rank.requests.cpu_millis == 1000
    assert plan.totals.cpu_millis < 2000


@pytest.mark.parametrize("is_read_only", [True, False])
def test_root_of_ranks_is_read_only_on_request(is_read_only: bool) -> None:
    pod = ranks_of(plan_of(read_only_root=is_read_only))
    courier, rank = pod.containers
    assert (courier.read_only_root, rank.read_only_root) == (True, is_read_only)
    assert {"/tmp", "/dev/shm", "/rank", "/volume"} <= {each.path for each in rank.volumes}
    assert not rank.run_as_root


def test_ranks_use_named_nodes_in_turn() -> None:
    pod = ranks_of(plan_of({"ranks": 3}, nodes=["a", "b"]))
    assert [(each.name, each.node, each.service_id) for each in pod.sets] == [
        ("rank-0", "a", "rank-s-0"),
        ("rank-1", "b", "rank-s-1"),
        ("rank-2", "a", "rank-s-2"),
    ]
    assert pod.replicas_on == "any"


@pytest.mark.parametrize("nodes", ["apart", "together", "any"])
def test_other_ranks_are_one_set(nodes: str) -> None:
    pod = ranks_of(plan_of({"ranks": 3}, nodes=nodes))
    assert [(each.name, each.replicas) for each in pod.sets] == [("rank", 3)]
    assert pod.replicas_on == nodes


def test_gangs_have_their_schedulers_marks() -> None:
    def marks(**ranks: Any) -> tuple[dict[str, str], dict[str, str], str | None]:
        pod = ranks_of(plan_of({"ranks": 2}, **ranks))
        return pod.labels, pod.annotations, pod.scheduler

    assert marks() == ({}, {}, None)
    assert marks(gang="kueue", queue="team") == (
        {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/pod-group-name": "rank-s"},
        {"kueue.x-k8s.io/pod-group-total-count": "2"},
        None,
    )
    assert marks(gang="volcano", queue="team") == (
        {},
        {"scheduling.k8s.io/group-name": "rank-s", "scheduling.volcano.sh/queue-name": "team"},
        "volcano",
    )
    assert marks(gang="coscheduling") == ({"scheduling.x-k8s.io/pod-group": "rank-s"}, {}, None)


def test_default_network_is_annotation_and_pod_address() -> None:
    pod = ranks_of(plan_of(network={"name": "net/fast"}))
    assert pod.annotations == {"v1.multus-cni.io/default-network": "net/fast"}
    assert "AIPERF_NETWORK_STATUS" not in pod.env


def test_additional_network_address_comes_from_status() -> None:
    pod = ranks_of(plan_of(network={"name": "net/fast", "attach": "additional"}))
    assert [each.name for each in pod.placement.networks] == ["net/fast"]
    assert pod.env["AIPERF_RANK_NETWORK"] == "net/fast"
    folder = next(v for v in pod.volumes if v.kind == "annotations")
    assert pod.env["AIPERF_NETWORK_STATUS"].startswith(f"{folder.path}/")
    assert folder.source == "k8s.v1.cni.cncf.io/network-status"


def test_devices_are_requested_by_the_rank_alone() -> None:
    courier, rank = ranks_of(plan_of(devices={"rdma/hca": 1})).containers
    assert (courier.requests.devices, rank.requests.devices) == ({}, {"rdma/hca": 1})


@pytest.mark.parametrize(
    ("ranks", "level", "reason"),
    [
        ({}, "restricted", None),
        ({"volume": {"kind": "claim"}}, "restricted", None),
        ({"host_network": True}, "privileged", "rank uses its node's network"),
        ({"mtu": 9000}, "privileged", "container mtu of rank has NET_ADMIN"),
        (
            {"volume": {"kind": "host-path", "path": "/data"}},
            "privileged",
            "rank mounts /data of its node",
        ),
    ],
)
def test_ranks_decide_the_pod_security_level(
    ranks: dict[str, Any], level: str, reason: str | None
) -> None:
    plan = plan_of(**ranks)
    assert plan.pod_security == level
    notes = [note for note in plan.notes if note.startswith("Pod Security")]
    assert (f"Pod Security privileged: {reason}" in notes) == (reason is not None)


def test_only_mtu_container_gets_net_admin() -> None:
    pod = ranks_of(plan_of(mtu=9000))
    folder, mtu = pod.preparations
    assert (mtu.capabilities, mtu.run_as_root) == (("NET_ADMIN",), True)
    for other in (folder, *pod.containers):
        assert (other.capabilities, other.run_as_root) == ((), False)


def test_ranks_reach_only_each_other() -> None:
    plan = plan_of()
    policy = next(p for p in plan.policies if p.name == "ranks")
    way = (Rule((StackPods(("rank",)),)),)
    assert (policy.components, policy.ingress, policy.egress) == (("rank",), way, way)
    names = {p.name for p in plan.policies if "rank" in p.components}
    assert names == {"services", "ranks"}
    assert not {"to-target", "target", "downloads"} & {p.name for p in plan.policies}


def test_secrets_of_a_workload_reach_its_couriers_only() -> None:
    plan = plan_of({"secret_env": {"TOKEN": "hubToken"}})
    assert plan.secret_keys == {"workload": ("hubToken",)}
    held = {pod.name: pod.secret_env for pod in plan.pods if "TOKEN" in pod.secret_env}
    assert held == {"rank": {"TOKEN": SecretKey("workload", "hubToken")}}
    assert "TOKEN" not in ranks_of(plan).sidecars[0].secret_env


def test_drain_waits_for_all_attempts_at_all_repetitions() -> None:
    data = {"workload": {**COMMAND, "timeout": "1m", "retries": 1}, "repetitions": 3}
    plan = plan_whole({**data, "deployment": {"ready_timeout": "2m"}})
    assert plan.times.load == 6 * 60 * 10**9
    assert plan.budget is not None
    assert plan.budget.hold == 8 * 60 * 10**9


def test_short_ttl_for_steps_names_its_keys() -> None:
    data = {"workload": {**COMMAND, "timeout": "20m"}, "deployment": {"ttl": "21m"}}
    with pytest.raises(ConfigError, match=r"deployment\.ttl is 21m.*workload\.timeout.*25m"):
        plan_whole(data)


def test_pods_read_kind_and_chosen_keys() -> None:
    plan = plan_of()
    again = plan_whole({"workload": COMMAND})
    assert "kind: command" in plan.files["config.yaml"]
    assert "output_limit" not in plan.files["config.yaml"]
    assert plan.identity.run_id == again.identity.run_id


def test_another_rank_image_makes_a_new_run() -> None:
    other = plan_whole({"workload": COMMAND}, workload_image="registry.example/tool:2")
    assert other.identity.run_id != plan_of().identity.run_id


def test_the_ranks_image_without_a_digest_is_noted() -> None:
    assert any("registry.example/tool:1 has no digest" in note for note in plan_of().notes)
