"""The maximum resources of stacks, and the limits, digests and registry of their config."""

from typing import Any

import pytest

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.placement import mirrored
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.footprint import Footprint, of_one_stack, of_stacks
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.previews.summary import footprint_line
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import make_plan, pod, to_plan
from tests.support.releases import deployment, release_plan, simple

DIGEST = "@sha256:" + "a" * 64
GPUS = {"kind": "custom", "image": "v:1", "gpu": {"count": 4}, "replicas": 2}
ON_ONE = {"require_nodes": {"kubernetes.io/hostname": ["n1"]}}


def rank_plan(**deployment: Any) -> StackPlan:
    data = {"workload": {"kind": "iperf"}, "deployment": deployment}
    return to_plan(parse_benchmark(data, "test"))


def footprint(gpus: int, hours: int = 1) -> Footprint:
    return Footprint(
        nodes=gpus, pods=2, gpus=gpus, cpu_millis=10, memory_bytes=20, time_ns=hours * HOUR_NS
    )


def test_each_pod_may_have_its_own_node() -> None:
    plan = make_plan()
    assert plan.footprint.nodes == plan.footprint.pods == plan.totals.pods


def test_placement_on_named_nodes_bounds_the_nodes() -> None:
    plan = make_plan(placement=ON_ONE)
    # The deadline pod may run anywhere unless it has a placement too.
    assert plan.footprint.nodes == 1


def test_ranks_together_are_on_one_node() -> None:
    apart = rank_plan(ranks={"nodes": "apart"}).footprint.nodes
    together = rank_plan(ranks={"nodes": "together"}).footprint.nodes
    assert together == apart - 1


def test_gpus_count_for_the_whole_time() -> None:
    found = make_plan(target=GPUS, ttl="3h").footprint
    assert (found.gpus, found.gpu_hours) == (8, 24.0)
    assert "8 GPUs (24 GPU-hours)" in found.text
    assert found.as_json["time_s"] == 3 * 3600


@pytest.mark.parametrize(
    ("events", "rollout", "pods"),
    [
        ([{"do": "scale", "replicas": 8}], "Recreate", 8),
        ([{"do": "scale", "replicas": 1}], "Recreate", 2),
        ([{"do": "restart"}], "Recreate", 2),
        ([{"do": "restart"}], "RollingUpdate", 3),
        ([{"do": "restart", "deployment": "target-bench"}], "RollingUpdate", 3),
    ],
)
def test_footprint_includes_pods_that_events_add(
    events: list[dict[str, Any]], rollout: str, pods: int
) -> None:
    data = {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"request_rate": 1, "duration": "1m"},
        "events": [{"at": "20s", **each} for each in events],
        "deployment": {"target": {**GPUS, "rollout": rollout}},
    }
    plan = to_plan(parse_benchmark(data, "test"))
    assert plan.footprint.gpus == 4 * pods
    assert plan.footprint.pods == plan.totals.pods + pods - 2
    assert plan.totals.gpus == 8
    assert (f"with {count(pods - 2, 'pod')} that events" in footprint_line(plan)) is (pods > 2)


def test_footprint_includes_pods_that_autoscalers_add() -> None:
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "decode"}, "maxReplicas": 6}
    scaler = simple("HorizontalPodAutoscaler", "decode", "autoscaling/v2", spec=spec)
    plan = release_plan(deployment("decode", replicas=2), scaler)
    assert (plan.totals.gpus, plan.footprint.gpus) == (2, 6)
    assert "with 4 pods that events or autoscalers add" in footprint_line(plan)


def test_footprint_includes_groups_that_autoscalers_add() -> None:
    template = deployment("x")["spec"]["template"]
    group = {"size": 4, "workerTemplate": template}
    spec = {"replicas": 1, "leaderWorkerTemplate": group}
    version = "leaderworkerset.x-k8s.io/v1"
    groups = simple("LeaderWorkerSet", "lws", version, spec=spec)
    scaled = {"scaleTargetRef": {"kind": "LeaderWorkerSet", "name": "lws"}, "maxReplicas": 3}
    scaler = simple("HorizontalPodAutoscaler", "lws", "autoscaling/v2", spec=scaled)
    plan = release_plan(groups, scaler)
    assert (plan.totals.gpus, plan.footprint.gpus) == (4, 12)


@pytest.mark.parametrize(("counts", "most"), [({"maxReplicaCount": 6}, 6), ({}, 100)])
def test_footprint_includes_pods_that_keda_adds(counts: dict[str, int], most: int) -> None:
    spec = {"scaleTargetRef": {"name": "decode"}, "minReplicaCount": 1, **counts}
    scaler = simple("ScaledObject", "decode", "keda.sh/v1alpha1", spec=spec)
    access = simple("TriggerAuthentication", "prometheus", "keda.sh/v1alpha1")
    plan = release_plan(deployment("decode", replicas=2), scaler, access)
    assert (plan.totals.gpus, plan.footprint.gpus) == (2, most)
    assert not any("not known" in note for note in plan.notes)


def test_jobs_of_keda_count_with_their_parallelism() -> None:
    template = deployment("x")["spec"]["template"]
    job = {"parallelism": 2, "template": template}
    spec = {"jobTargetRef": job, "minReplicaCount": 1, "maxReplicaCount": 3}
    plan = release_plan(simple("ScaledJob", "batch", "keda.sh/v1alpha1", spec=spec))
    assert (plan.totals.gpus, plan.footprint.gpus) == (2, 6)


def test_unknown_targets_of_autoscalers_are_noted() -> None:
    spec = {"scaleTargetRef": {"kind": "Graph", "name": "graph"}}
    plan = release_plan(simple("ScaledObject", "s", "keda.sh/v1alpha1", spec=spec))
    assert any("ScaledObject/s are unknown and not counted" in note for note in plan.notes)


def test_footprints_of_parallel_stacks_add_up() -> None:
    members = [[footprint(1), footprint(4), footprint(2)], [footprint(8, hours=2)]]
    found = of_stacks(members, at_once=2)
    assert (found.gpus, found.pods) == (4 + 2 + 8, 4 + 2)
    # Three stacks of an hour each, two at a time, and one of two hours.
    assert found.time_ns == 2 * HOUR_NS


def test_changed_stack_counts_its_largest_shape_once() -> None:
    found = of_one_stack([footprint(1), footprint(4)])
    assert (found.gpus, found.time_ns) == (4, HOUR_NS)


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"limits": {"pods": 3}}, "pods 10, limit 3"),
        ({"limits": {"nodes": 2}}, "name the nodes (deployment.placement.require_nodes"),
        ({"limits": {"gpus": 7}, "target": GPUS}, "gpus 8, limit 7"),
        ({"limits": {"gpus": 0}, "target": GPUS}, "gpus 8, limit 0"),
        ({"limits": {"cpu": 1}, "target": GPUS}, "limit 1"),
        ({"limits": {"memory": "1Gi"}}, "limit 1Gi"),
        ({"limits": {"time": "1h"}}, "time 2h, limit 1h; "),
    ],
)
def test_exceeded_limit_is_refused(deployment: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^deployment.limits: ") as refused:
        make_plan(**deployment)
    assert message in str(refused.value)


def test_stack_within_its_limits_is_planned() -> None:
    limits = {"pods": 40, "nodes": 40, "gpus": 0, "cpu": 64, "memory": "64Gi", "time": "2h"}
    assert make_plan(limits=limits).totals.gpus == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm/vllm-openai:v1", "r.io:5000/m/vllm/vllm-openai:v1"),
        ("docker.io/vllm/vllm-openai:v1", "r.io:5000/m/vllm/vllm-openai:v1"),
        ("python:3", "r.io:5000/m/library/python:3"),
        ("docker.io/python:3", "r.io:5000/m/library/python:3"),
        ("localhost/aiperf-svc:1", "r.io:5000/m/aiperf-svc:1"),
        (f"quay.io/a/b/c{DIGEST}", f"r.io:5000/m/a/b/c{DIGEST}"),
        ("host:80/a:1", "r.io:5000/m/a:1"),
        ("r.io:5000/m/a:1", "r.io:5000/m/a:1"),
    ],
)
def test_mirror_replaces_the_registry_of_an_image(name: str, expected: str) -> None:
    assert mirrored(name, "r.io:5000/m") == expected


@pytest.mark.parametrize("bad", ["https://r.io", "r.io/", "r.io/a:1", ""])
def test_invalid_registry_mirror_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="registry_mirror"):
        make_plan(registry_mirror=bad)


def test_all_stack_images_come_from_the_mirror() -> None:
    plan = make_plan(registry_mirror="r.io", target=GPUS)
    images = {image.name for each in plan.pods for image in each.images}
    assert images == {"r.io/aiperf-svc:1.2.3", "r.io/library/v:1"}
    ranks = rank_plan(registry_mirror="r.io")
    assert all(image.name.startswith("r.io/") for each in ranks.pods for image in each.images)


def test_images_of_volumes_count_too() -> None:
    weights = {"kind": "image", "source": "quay.io/weights:1", "path": "/weights"}
    target = {**GPUS, "volumes": [weights]}
    plan = make_plan(registry_mirror="r.io", target=target)
    assert "r.io/weights:1" in pod(plan, "target").image_names
    with pytest.raises(ConfigError, match=r"quay.io/weights:1 \(pod target\)"):
        make_plan(require_digests=True, target=target)


def test_missing_digest_is_refused_with_the_pod() -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan(require_digests=True, target=GPUS)
    words = str(refused.value)
    assert words.startswith("deployment.require_digests: localhost/aiperf-svc:1.2.3 (pod deadline)")
    assert "v:1 (pod target)" in words


def test_pinned_images_are_accepted() -> None:
    target = {**GPUS, "image": f"v{DIGEST}"}
    plan = make_plan(require_digests=True, image={"name": f"a/b{DIGEST}"}, target=target)
    assert pod(plan, "target").image.name == f"v{DIGEST}"
