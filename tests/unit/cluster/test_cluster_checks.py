"""Data about nodes and GPUs, and whether a cluster is suitable for a benchmark."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.cluster_facts import (
    clock_ahead_s,
    exporters_of,
    read_nodes,
)
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.cluster_checks import (
    gpu_types,
    judge_clocks,
    judge_exporters,
    judge_gpus,
    judge_nodes,
    judge_policies,
    judge_pressure,
    judge_xids,
)
from aiperf_svc.core.cluster.facts import Exporter, GpuPage, NodeFacts, ProbeResult
from tests.support.plans import named, node

TAKEN = "2026-01-01T00:00:10Z"


def ready(**facts: Any) -> NodeFacts:
    return NodeFacts(**{"name": "a", "is_ready": True, **facts})


def reporting(at: str, *fields: dict[str, Any]) -> dict[str, Any]:
    """Return a node whose status report has this time."""
    found = node()
    found["status"]["conditions"][0]["lastHeartbeatTime"] = at
    found["metadata"]["managedFields"] = list(fields)
    return found


def report_fields(**changes: Any) -> dict[str, Any]:
    """Return the managed fields of a kubelet's report."""
    conditions: dict[str, Any] = {'k:{"type":"Ready"}': {"f:lastHeartbeatTime": {}}}
    status = {"f:status": {"f:conditions": conditions}}
    return {"subresource": "status", "time": TAKEN, "fieldsV1": status, **changes}


@pytest.mark.parametrize(
    ("nodes", "state", "message"),
    [
        ([ready(), ready(name="b")], "ok", "2 of 2 are ready"),
        ([ready(), ready(name="b", is_ready=False)], "warning", "1 of 2 are ready; not ready: b"),
        ([ready(), ready(name="b", is_open=False)], "warning", "cordoned: b"),
        ([ready(is_ready=False)], "failed", "0 of 1 are ready"),
        ([ready(is_open=False)], "failed", "cordoned: a"),
        ([], "failed", "0 of 0 are ready"),
    ],
)
def test_nodes_must_be_ready_and_open(nodes: list[NodeFacts], state: str, message: str) -> None:
    check = judge_nodes(nodes)
    assert (check.state, message in check.detail) == (state, True), check


def test_many_nodes_are_not_all_named() -> None:
    lost = [ready(name=f"n{number}", is_ready=False) for number in range(7)]
    assert judge_nodes([ready(), *lost]).detail.endswith("n0, n1, n2, n3, n4 and 2 more")


def test_only_pressures_are_reported() -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "DiskPressure", "status": "True"},
        {"type": "MemoryPressure", "status": "False"},
        {"type": "StorageReady", "status": "True"},
    ]
    nodes = read_nodes([node("a", conditions=conditions), node("b")], None)
    assert judge_pressure(nodes).detail == "a (DiskPressure)"
    assert judge_pressure(nodes[1:]).state == "ok"


def test_clock_offset_is_report_minus_receipt() -> None:
    assert clock_ahead_s(reporting("2026-01-01T00:00:10Z", report_fields())) == 0
    assert clock_ahead_s(reporting("2026-01-01T00:00:03Z", report_fields())) == -7
    assert clock_ahead_s(reporting("2026-01-01T01:00:10+00:00", report_fields())) == 3600


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [report_fields(subresource="")],
        [report_fields(fieldsV1={"f:status": {"f:images": {}}})],
        [report_fields(), report_fields()],
    ],
    ids=["stripped", "not a status", "without a heartbeat", "of two reporters"],
)
def test_unreadable_clock_offset_is_unknown(fields: list[dict[str, Any]]) -> None:
    assert clock_ahead_s(reporting(TAKEN, *fields)) is None


def test_clock_of_an_unready_node_is_unknown() -> None:
    found = reporting("2026-01-01T00:00:00Z", report_fields())
    found["status"]["conditions"][0]["status"] = "Unknown"
    assert clock_ahead_s(found) is None


@pytest.mark.parametrize(
    ("offsets", "state", "message"),
    [
        ([0, 1, -1], "ok", "3 of 3 nodes agree with the API server to a second"),
        ([0, -3], "ok", "2 of 2 nodes are at most 3 s off the API server"),
        ([None, 0], "ok", "1 of 2 nodes agree"),
        ([0, 90], "warning", "n1 is 90 s ahead of the API server"),
        ([-6, 0], "warning", "n0 is 6 s behind the API server"),
        ([None], "not checked", "no ready node"),
    ],
)
def test_clocks_are_judged(offsets: list[int | None], state: str, message: str) -> None:
    nodes = [ready(name=f"n{n}", clock_ahead_s=offset) for n, offset in enumerate(offsets)]
    check: Check = judge_clocks(nodes)
    assert (check.state, message in check.detail) == (state, True), check


def lease(name: str, renewed: str, *fields: Any) -> dict[str, Any]:
    return named(name, metadata={"managedFields": list(fields)}, spec={"renewTime": renewed})


def test_lease_shows_a_new_nodes_clock() -> None:
    renewal = {"time": TAKEN, "fieldsV1": {"f:spec": {"f:renewTime": {}}}}
    other = {"time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {}}}
    leases = [
        lease("late", "2026-01-01T00:01:40.987654Z", renewal, other),
        lease("silent", "2026-01-01T00:00:10.000000Z", other),
        lease("reporting", "2026-01-01T00:09:00.000000Z", renewal),
    ]
    nodes = [node(name) for name in ("late", "silent", "without")]
    nodes.append(reporting("2026-01-01T00:00:03Z", report_fields()))
    nodes[-1]["metadata"]["name"] = "reporting"
    found = {each.name: each.clock_ahead_s for each in read_nodes(nodes, None, leases)}
    assert found == {"late": 90, "silent": None, "without": None, "reporting": -7}


Json = dict[str, Any]
GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"


def gpu_node(
    name: str, capacity: int, allocatable: int, *, product: str = "H100", **rest: Any
) -> dict[str, Any]:
    labels = {PRODUCT: product} if product else {}
    return node(
        name, labels=labels, offers={GPU: str(allocatable)}, capacity={GPU: str(capacity)}, **rest
    )


def using(name: str, gpus: int) -> dict[str, Any]:
    """Return a pod on a node."""
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


def test_free_gpus_need_pods_and_open_nodes() -> None:
    assert [t.free for t in gpu_types(facts(gpu_node("a", 8, 8)))] == [None]
    closed = gpu_node("b", 8, 8, spec={"unschedulable": True})
    assert [t.free for t in gpu_types(facts(gpu_node("a", 8, 8), closed, pods=[]))] == [8]


def test_last_missing_device_plugin_fails() -> None:
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
def test_labelled_node_without_gpus_lacks_its_plugin(label: str) -> None:
    labelled = node("a", labels={label: "true"})
    (plugin,) = judge_gpus(facts(labelled))
    assert (plugin.state, "without offering any: a" in plugin.detail) == ("failed", True)


def test_cluster_without_gpus_has_one_line() -> None:
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


def test_gpu_nodes_need_a_readable_exporter() -> None:
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


def test_xid_error_fails_and_unread_pages_are_ignored() -> None:
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
def test_enforced_policy_needs_an_open_allowed_port(result: ProbeResult, state: str) -> None:
    assert judge_policies(result).state == state
