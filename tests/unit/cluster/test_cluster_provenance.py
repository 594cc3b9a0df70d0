"""Images, arguments and nodes of pods are added to the provenance of client and target."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.provenance import add_cluster_facts, newest_start_ns
from aiperf_svc.adapters.exports.manifest import build_manifest, read_manifest
from aiperf_svc.adapters.report.blocks import Details, Header, Note, document
from aiperf_svc.adapters.report.tables import hardware
from aiperf_svc.adapters.storage.artifacts import save_manifest
from aiperf_svc.adapters.storage.provenance_file import read_provenance, write_provenance
from aiperf_svc.config.target import Target
from aiperf_svc.core.results.provenance import UNKNOWN, Provenance
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.shapes import index_shapes
from tests.support.fake_cluster import FakeCluster
from tests.support.small_configs import small_jobs

Json = dict[str, Any]
STARTED = "2026-03-01T10:00:00Z"
PODS = "/api/v1/namespaces/bench/pods"


def pod(component: str, node: str, *arguments: str) -> Json:
    container = {"name": "main", "image": f"example/{component}:1", "args": list(arguments)}
    statuses = [
        {
            "name": "main",
            "state": {"running": {"startedAt": STARTED}},
            "imageID": f"docker-pullable://example/{component}@sha256:ab",
        },
        {"name": "sidecar", "imageID": "example/sidecar@sha256:cd"},
    ]
    return {
        "metadata": {"labels": {"app.kubernetes.io/component": component}},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"containerStatuses": statuses},
    }


def node(kernel: str, **labels: str) -> Json:
    info = {"kernelVersion": kernel, "osImage": "Ubuntu 24.04", "containerRuntimeVersion": "cri"}
    return {"metadata": {"labels": labels}, "status": {"nodeInfo": info}}


def report(found: Provenance) -> bytes:
    return document("r", [Header("r", ()), hardware(found), Details("More", [Note("after")])])


async def added(
    tmp_path: Path,
    objects: dict[str, Json],
    target: Target,
    kind: type[FakeCluster] = FakeCluster,
) -> Provenance:
    before = Provenance(
        client={"kernel": "6.1"}, target={"driver": "550", "gpu_model": UNKNOWN, "kernel": UNKNOWN}
    )
    folder = tmp_path / "run"
    folder.mkdir()
    write_provenance(folder, before)
    (folder / "report.html").write_bytes(report(before))
    save_manifest(tmp_path, build_manifest(tmp_path, "r1"))
    await add_cluster_facts(
        kind(objects).typed,
        tmp_path,
        namespace="bench",
        stack="s",
        target=target,
        client={"image_replaces": "registry/services:1"},
    )
    found = read_provenance(folder)
    assert found is not None
    assert read_manifest(tmp_path) == build_manifest(tmp_path, "r1")
    return found


async def test_pods_and_nodes_of_a_stack_are_added(tmp_path: Path) -> None:
    labels = {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "kubernetes.io/hostname": "n2",
        "nvidia.com/gpu.product": "NVIDIA-H100",
        "nvidia.com/cuda.driver-version.full": "560.1",
    }
    objects = {
        PODS: {"items": [pod("worker", "n1"), pod("target", "n2", "--api-key", "sk-1")]},
        "/api/v1/nodes/n1": node("6.8"),
        "/api/v1/nodes/n2": node("6.9", **labels),
    }
    found = await added(tmp_path, objects, Target(kind="vllm"))
    assert found.client["kernel"] == "6.8"
    assert found.client["image_digest"] == "example/worker@sha256:ab"
    assert "arguments" not in found.client
    assert found.client["image_replaces"] == "registry/services:1"
    assert "client.image_replaces" not in found.compared
    assert found.target == {
        "driver": "550", "gpu_model": "NVIDIA-H100", "kernel": "6.9", "os": "Ubuntu 24.04",
        "node_type": "p5.48xlarge", "container_runtime": "cri", "image": "example/target:1",
        "image_digest": "example/target@sha256:ab", "arguments": "--api-key ***",
        "node": "n2", "started": STARTED,
    }  # fmt: skip
    assert (tmp_path / "run" / "report.html").read_bytes() == report(found)


async def test_earlier_trials_keep_facts_of_their_stack(tmp_path: Path) -> None:
    objects = {PODS: {"items": [pod("worker", "n1"), pod("target", "n2")]}}
    nodes = {
        f"/api/v1/nodes/{name}": node("6.8", **{"kubernetes.io/hostname": name})
        for name in ("n1", "n2")
    }
    before = await added(tmp_path, objects | nodes, Target(kind="vllm"))
    resumed = before.with_facts(client={}, target={"node": "n0"}, fallback={})
    write_provenance(tmp_path / "run", resumed)
    write_provenance(tmp_path, Provenance(client={}, target={}))
    cluster = FakeCluster(objects | nodes).typed
    place: Any = {"namespace": "bench", "stack": "s", "target": Target(kind="vllm"), "client": {}}
    await add_cluster_facts(cluster, tmp_path, **place)
    new = read_provenance(tmp_path)
    assert new is not None
    assert new.client["image"] == "example/worker:1"
    assert read_provenance(tmp_path / "run") == resumed


async def test_indexes_keep_facts_of_their_machines(tmp_path: Path) -> None:
    pods = [pod("index-1", "n1"), pod("index-2", "n2"), pod("collector", "n3")]
    nodes = {f"/api/v1/nodes/n{n}": node(f"6.{n}") for n in (1, 2, 3)}
    found = await added(tmp_path, {PODS: {"items": pods}} | nodes, Target(kind="vllm"))
    assert found.client["image"] == "example/collector:1; example/index-1:1; example/index-2:1"
    assert found.client["kernel"] == "6.1"
    assert "os" not in found.client


def index_pod(node_name: str, phase: str) -> Json:
    """A pod of the first of two indexes of a Job."""
    found = pod("index-1", node_name)
    found["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = "0"
    found["spec"]["containers"][0]["env"] = [{"name": "AIPERF_SHAPES", "value": "1,2"}]
    server = {"name": "target", "image": "example/server:1", "command": ["/launcher"]}
    found["spec"]["initContainers"] = [{"name": "setup", "image": "example/index-1:1"}, server]
    ended = {"terminated": {"startedAt": STARTED}}
    status = {"name": "target", "imageID": "docker-pullable://s@sha256:ef", "state": ended}
    found["status"] |= {"phase": phase, "initContainerStatuses": [status]}
    return found


async def test_trials_of_indexes_have_their_pods(tmp_path: Path) -> None:
    args = {"deployment.target.args": [["--ttft", "1ms"], ["--ttft", "2ms"]]}
    indexes = index_shapes(parse_benchmark(small_jobs(product=args), "test"))
    folders = [tmp_path / "trials" / trial.folder for shape in indexes for trial in shape.trials]
    for folder in folders:
        folder.mkdir(parents=True)
        write_provenance(folder, Provenance(client={"kernel": "6.1"}, target={}))
    pods = [index_pod("n1", "Failed"), index_pod("n2", "Succeeded"), pod("collector", "n3")]
    nodes = {
        f"/api/v1/nodes/n{n}": node(f"6.{n}", **{"kubernetes.io/hostname": f"n{n}"}) for n in (2, 3)
    }
    place: Any = {"namespace": "bench", "stack": "s", "target": Target(kind="mock"), "client": {}}
    cluster = FakeCluster({PODS: {"items": pods}} | nodes).typed
    await add_cluster_facts(cluster, tmp_path, indexes=indexes, **place)
    measured, without_pod = map(read_provenance, folders)
    assert measured is not None
    assert measured.client["image"] == "example/index-1:1"
    assert measured.client["kernel"] == "6.2"
    assert measured.target.pop("arguments").endswith("--ttft 1ms")
    assert measured.target == {
        "image": "example/server:1", "image_digest": "s@sha256:ef", "node": "n2", "kernel": "6.2",
        "started": STARTED, "os": "Ubuntu 24.04", "container_runtime": "cri",
    }  # fmt: skip
    assert without_pod is not None
    assert without_pod.client["kernel"] == "6.1"
    assert without_pod.target == {}


class SelectingCluster(FakeCluster):
    """Lists only the pods that a selector matches."""

    async def get(self, path: str, **params: str) -> Json:
        found = await super().get(path, **params)
        if "labelSelector" not in params:
            return found
        wanted = dict(each.split("=") for each in params["labelSelector"].split(","))
        items = found["items"]
        return {
            "items": [pod for pod in items if wanted.items() <= pod["metadata"]["labels"].items()]
        }


async def test_pods_of_pools_are_the_target(tmp_path: Path) -> None:
    pods = [pod(name, "n1", "--tp", "4") for name in ("worker", "decode", "router")]
    own = {"aiperf.dev/stack": "s"}
    pods[0]["metadata"]["labels"] |= own | {"app.kubernetes.io/name": "aiperf-svc"}
    pods[1]["metadata"]["labels"] = own | {"role": "decode"}
    pods[2]["metadata"]["labels"] = own | {"role": "router"}
    release = {
        "kind": "release",
        "from": {"manifests": "m.yaml"},
        "url": "http://router:8000",
        "pools": {"decode": {"labels": {"role": "decode"}}},
    }
    objects = {PODS: {"items": pods}, "/api/v1/nodes/n1": node("6.8")}
    found = await added(tmp_path, objects, Target.model_validate(release), SelectingCluster)
    assert found.client["image"] == "example/worker:1"
    assert found.target["image"] == "example/decode:1"
    assert found.target["arguments"] == "--tp 4"


async def test_forbidden_cluster_facts_are_unknown(tmp_path: Path) -> None:
    pods = {"namespace": "serving", "labels": {"app": "vllm"}}
    target = Target.model_validate({"pods": pods})
    found = await added(tmp_path, {PODS: {"items": [pod("worker", "n1")]}}, target)
    assert found.target == {"driver": "550", "gpu_model": UNKNOWN, "kernel": UNKNOWN}
    assert found.client["kernel"] == "6.1"


def started(at: str, **metadata: Any) -> Json:
    """Return a target pod whose container started at this time, or has not started."""
    found = pod("target", "n1")
    found["metadata"].update(metadata)
    found["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at}} if at else {}
    return found


async def test_newest_start_leaves_out_pods_that_end() -> None:
    pods = [
        started("2026-03-01T10:00:00Z"),
        started("2026-03-01T10:00:07Z"),
        started("2026-03-01T10:00:59Z", deletionTimestamp="2026-03-01T10:01:00Z"),
        started(""),
    ]
    cluster = FakeCluster({PODS: {"items": pods}}).typed
    found = await newest_start_ns(cluster, "bench", {"a": "b"})
    assert datetime.fromtimestamp(found / 1e9, UTC).isoformat() == "2026-03-01T10:00:07+00:00"


@pytest.mark.parametrize("pods", [[], [started("")]], ids=["no pod", "none runs"])
async def test_start_of_a_target_without_pods_is_unknown(pods: list[Json]) -> None:
    cluster = FakeCluster({PODS: {"items": pods}}).typed
    with pytest.raises(BenchmarkFailed, match="no pod of it runs"):
        await newest_start_ns(cluster, "bench", {})
