"""GPUs, their device plugin and their exporters, as a cluster shows them."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.exporters import exporters_of
from aiperf_svc.adapters.cluster.preflight.node_facts import read_nodes
from aiperf_svc.core.cluster.facts import Exporter, GpuPage, NodeFacts, ProbeResult
from aiperf_svc.core.cluster.gpu_checks import (
    gpu_types,
    judge_exporters,
    judge_gpus,
    judge_xids,
)
from aiperf_svc.core.cluster.network_check import judge_policies
from tests.support.plans import named, node

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"


def gpu_node(
    name: str, capacity: int, allocatable: int, *, product: str = "H100", **rest: Any
) -> dict[str, Any]:
    labels = {PRODUCT: product} if product else {}
    return node(
        name,
        labels=labels,
        offers={GPU: str(allocatable)},
        capacity={GPU: str(capacity)},
        **rest,
    )


def using(name: str, gpus: int) -> dict[str, Any]:
    """A pod on a node."""
    container = {"resources": {"requests": {GPU: str(gpus)}}}
    spec = {"nodeName": name, "containers": [container]}
    return {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Running"}}


def facts(
    *nodes: dict[str, Any], pods: list[dict[str, Any]] | None = None
) -> tuple[NodeFacts, ...]:
    return read_nodes(nodes, pods)


def states(nodes: tuple[NodeFacts, ...]) -> dict[str, str]:
    return {each.name: each.state for each in judge_gpus(nodes)}


def exporter(pod_node: str = "a", **changes: Any) -> Exporter:
    made = {
        "namespace": "gpu-operator", "pod": f"dcgm-{pod_node}", "node": pod_node,
        "url": f"http://{pod_node}:9400/metrics", "label": ("app", "x"), "port": 9400,
    }  # fmt: skip
    return Exporter(**{**made, **changes})


def test_gpus_are_counted_by_resource_and_product() -> None:
    nodes = facts(
        gpu_node("a", 8, 8),
        gpu_node("b", 8, 8),
        gpu_node("c", 4, 4, product="L4"),
        node("d"),
        pods=[using("a", 3)],
    )
    types = [(t.product, t.nodes, t.allocatable, t.free) for t in gpu_types(nodes)]
    assert types == [("H100", 2, 16, 13), ("L4", 1, 4, 4)]
    assert states(nodes) == {"device plugin": "ok", "GPUs: H100": "ok", "GPUs: L4": "ok"}


def test_free_gpus_are_unknown_without_the_pods_and_none_on_a_closed_node() -> None:
    assert [t.free for t in gpu_types(facts(gpu_node("a", 8, 8)))] == [None]
    closed = gpu_node("b", 8, 8, spec={"unschedulable": True})
    assert [t.free for t in gpu_types(facts(gpu_node("a", 8, 8), closed, pods=[]))] == [8]


def test_a_plugin_that_is_gone_is_a_warning_and_the_last_one_a_failure() -> None:
    gone = facts(gpu_node("a", 8, 0), gpu_node("b", 8, 8))
    plugin, _ = judge_gpus(gone)
    assert (plugin.state, plugin.detail) == (
        "warning",
        f"1 of 2 nodes with GPUs offer them to pods; unhealthy or without their plugin: "
        f"a (0 of 8 {GPU})",
    )
    assert states(gone[:1]) == {"device plugin": "failed", "GPUs: H100": "failed"}


def test_one_unhealthy_gpu_of_a_node_is_named() -> None:
    assert "a (7 of 8" in judge_gpus(facts(gpu_node("a", 8, 7)))[0].detail


@pytest.mark.parametrize(
    "label", [PRODUCT, "nvidia.com/gpu.present", "cloud.google.com/gke-accelerator"]
)
def test_a_node_that_is_labelled_and_offers_nothing_lacks_its_plugin(label: str) -> None:
    labelled = node("a", labels={label: "true"})
    (plugin,) = judge_gpus(facts(labelled))
    assert (plugin.state, "without offering any: a" in plugin.detail) == ("failed", True)


def test_a_cluster_without_gpus_says_so_in_one_line() -> None:
    (check,) = judge_gpus(facts(node("a")))
    assert (check.state, check.detail) == ("ok", "no ready node has any")


def test_exporters_are_found_by_label_when_they_run() -> None:
    def pod(name: str, labels: dict[str, str], **status: Any) -> dict[str, Any]:
        ports = [{"name": "metrics", "containerPort": 9401}]
        return named(
            name,
            metadata={"labels": labels, "namespace": "n"},
            spec={"nodeName": "a", "containers": [{"ports": ports}]},
            status={"phase": "Running", "podIP": "10.0.0.1", **status},
        )

    found = exporters_of(
        [
            pod("chart", {"app.kubernetes.io/name": "dcgm-exporter"}),
            pod("operator", {"app": "nvidia-dcgm-exporter"}, podIP="fd00::1"),
            pod("pending", {"app": "nvidia-dcgm-exporter"}, phase="Pending"),
            pod("other", {"app": "web"}),
        ]
    )
    assert [(each.pod, each.url) for each in found] == [
        ("chart", "http://10.0.0.1:9401/metrics"),
        ("operator", "http://[fd00::1]:9401/metrics"),
    ]


def test_every_node_with_gpus_needs_an_exporter_that_a_pod_can_read() -> None:
    nodes = facts(gpu_node("a", 8, 8), gpu_node("b", 8, 8))
    both = (exporter("a"), exporter("b"))
    read = {each.url: GpuPage(gpus=8) for each in both}
    assert judge_exporters(nodes, both, read).detail.endswith("a pod reads them: 16 GPUs")
    assert judge_exporters(nodes, both, read).state == "ok"
    one = judge_exporters(nodes, both[:1], read)
    assert (one.state, one.detail.endswith("none on b")) == ("warning", True)
    refused = judge_exporters(nodes, both, {**read, both[1].url: GpuPage(failure="timed out")})
    assert (refused.state, "dcgm-b on b: timed out" in refused.detail) == ("warning", True)
    assert judge_exporters(nodes, (), {}).detail == "none runs on the 2 nodes with GPUs"
    assert judge_exporters(facts(node("a")), (), {}).state == "ok"
    assert judge_exporters(nodes, None, {}).state == "not checked"


def test_an_xid_error_fails_and_an_unread_page_says_nothing() -> None:
    one = exporter("a")
    bad = judge_xids([one], {one.url: GpuPage(gpus=8, xids=(("3", 79),))})
    assert bad is not None
    assert (bad.state, bad.detail) == ("failed", "GPU 3 of a (Xid 79)")
    good = judge_xids([one], {one.url: GpuPage(gpus=8)})
    assert good is not None
    assert good.state == "ok"
    assert judge_xids([one], {one.url: GpuPage(failure="timed out")}) is None
    assert judge_xids(None, {}) is None


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (ProbeResult(forbidden="timed out"), "ok"),
        (ProbeResult(), "warning"),
        (ProbeResult(allowed="timed out", forbidden="timed out"), "failed"),
        (ProbeResult(not_tried="no rights"), "not checked"),
    ],
    ids=["enforced", "not enforced", "no network", "not tried"],
)
def test_a_policy_is_enforced_only_if_the_allowed_way_is_open(
    result: ProbeResult, state: str
) -> None:
    assert judge_policies(result).state == state
