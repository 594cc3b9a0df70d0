"""The runner narrows the network policy to a target Service, but no setting of the file."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.config.target import TargetPods
from aiperf_svc.config.telemetry import ClusterExporters
from aiperf_svc.plan.network import Rule
from aiperf_svc.runner.stack.discovery import (
    CILIUM,
    SERVICE,
    SLICE,
    with_api_server,
    with_gpu_exporters,
    with_target_pods,
)
from aiperf_svc.runner.stack.request import StackRequest
from tests.support.fake_cluster import FakeCluster
from tests.support.small_configs import small_benchmark, small_config

PODS = TargetPods(namespace="models", labels={"app": "llm"}, port=8080)


ONE_SERVICE: dict[str, Any] = {
    "/api/v1/namespaces/models/services/llm": {
        "spec": {"ports": [{"port": 80}], "selector": {"app": "llm"}}
    },
    "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices": {
        "items": [{"ports": [{"name": "", "port": 8080}]}]
    },
}
"""Service `llm` in namespace `models`, from port 80 to its pods' port 8080."""


def request_for(url: str, **deployment: Any) -> StackRequest:
    return StackRequest(
        stack="s", config=parse_config(benchmark(url, **deployment), ""), environ={}
    )


def benchmark(url: str, **deployment: Any) -> dict[str, Any]:
    return small_benchmark(url, deployment={"ttl": "1h", **deployment})


async def narrowed(request: StackRequest) -> tuple[StackRequest, list[str]]:
    notes: list[str] = []
    found = await with_target_pods(request, FakeCluster(ONE_SERVICE).typed, say=notes.append)
    return found, notes


@pytest.mark.parametrize("host", ["llm.models", "llm.models.svc.cluster.local"])
async def test_pods_of_a_target_service_are_found(host: str) -> None:
    request = request_for(f"http://{host}")
    found, notes = await narrowed(request)
    assert found.config.deployment.target.pods == PODS
    assert found.plan.notes == ()
    assert "app=llm in namespace models, port 8080" in notes[0]


async def test_target_in_its_nodes_network_is_reached() -> None:
    pods = {"items": [{"metadata": {"name": "llm-0"}, "spec": {"hostNetwork": True}}]}
    cluster = FakeCluster(ONE_SERVICE | {"/api/v1/namespaces/models/pods": pods})
    notes: list[str] = []
    request = request_for("http://llm.models")
    found = await with_target_pods(request, cluster.typed, say=notes.append)
    (to_target,) = (each for each in found.plan.policies if each.name == "to-target")
    assert to_target.egress == (Rule(ports=(8080,)),)
    assert "port 8080 of every address" in notes[0]
    assert "port 8080 of every address" in found.plan.notes[0]


def over_addresses(**options: Any) -> StackRequest:
    """Return a stack whose trials measure two Services with different pods."""
    urls = ["http://llm.models", "http://other.models.svc"]
    experiment = {"product": {"endpoint.url": urls}, "parallel": options.pop("parallel", 1)}
    config = parse_config({**benchmark(urls[0], ttl="2h"), "experiment": experiment}, "")
    return StackRequest(stack="s", config=config, environ={}, **options)


async def test_shapes_with_several_targets_keep_their_policies() -> None:
    request = over_addresses()
    found, notes = await narrowed(request)
    assert found is request
    assert notes == []
    first, second = (
        next(p.egress for p in plan.policies if p.name == "to-target") for plan in found.plans
    )
    assert first != second


async def test_single_shape_stack_gets_its_target_pods() -> None:
    found, notes = await narrowed(over_addresses(only_shape=1, parallel=2))
    (plan,) = found.plans
    assert plan.config.deployment.target.pods == PODS
    assert len(notes) == 1
    other, notes = await narrowed(over_addresses(only_shape=2, parallel=2))
    assert (other.plan.inference.endpoint.url, notes) == ("http://other.models.svc", [])


@pytest.mark.parametrize(
    ("url", "deployment"),
    [
        ("http://llm.models", {"target": {"egress_cidrs": ["10.0.0.0/8"]}}),
        ("http://llm.models", {"target": {"pods": {"namespace": "others"}}}),
        ("http://llm.models", {"network_policies": False}),
        ("http://target", {"target": {"kind": "mock"}}),
        ("http://other.models", {}),
        ("https://api.example.com", {}),
    ],
)
async def test_configured_or_unknown_target_stays_unchanged(
    url: str, deployment: dict[str, Any]
) -> None:
    request = request_for(url, **deployment)
    found, notes = await narrowed(request)
    assert found is request
    assert notes == []


KNOWN: dict[str, Any] = {
    SERVICE: {"spec": {"clusterIPs": ["10.96.0.1"]}},
    SLICE: {"endpoints": [{"addresses": ["172.30.0.2"]}]},
}


async def _narrowed(known: dict[str, Any], **deployment: Any) -> tuple[StackRequest, list[str]]:
    request = request_for("http://t", **deployment)
    notes: list[str] = []
    found = await with_api_server(request, FakeCluster(known).typed, say=notes.append)
    return found, notes


async def test_program_gets_the_api_server_address() -> None:
    found, notes = await _narrowed(KNOWN)
    cidrs = ("10.96.0.1/32", "172.30.0.2/32")
    assert found.config.deployment.api_server_cidrs == cidrs
    assert not notes


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "cannot be read"),
        ({**KNOWN, CILIUM: {}}, "Cilium does not match the API server by its address"),
        ({**KNOWN, SLICE: {"endpoints": None}}, "reports no address"),
    ],
)
async def test_unknown_api_server_allows_all_with_note(known: dict[str, Any], why: str) -> None:
    found, notes = await _narrowed(known)
    assert found.config.deployment.api_server_cidrs == ()
    (note,) = notes
    assert note.startswith("note: the deadline's pod may reach every address, because ")
    assert why in note


async def test_failing_server_may_have_cilium() -> None:
    class Failing(FakeCluster):
        async def get(self, path: str, **params: str) -> dict[str, Any]:
            if path == CILIUM:
                raise Refused("etcdserver: leader changed (500)", status=500, reason="")
            return await super().get(path, **params)

    notes = list[str]()
    request = request_for("http://t")
    assert await with_api_server(request, Failing(KNOWN).typed, say=notes.append) is request
    assert "whether the cluster has Cilium is unknown (etcdserver: leader changed" in notes[0]


@pytest.mark.parametrize("own", [{"api_server_cidrs": ["10.0.0.0/8"]}, {"network_policies": False}])
async def test_configured_api_server_addresses_are_kept(own: dict[str, Any]) -> None:
    found, notes = await _narrowed(KNOWN, **own)
    assert found.config.deployment.api_server_cidrs == tuple(own.get("api_server_cidrs", ()))
    assert not notes


Json = dict[str, Any]
SERVER_PODS = "/api/v1/namespaces/serving/pods"
OUTSIDE: Json = {"pods": {"namespace": "serving", "labels": {"app": "vllm"}}}
OWN: Json = {"kind": "vllm", "gpu": {"count": 1}}


def server(name: str, node: str | None, resource: str = "nvidia.com/gpu") -> Json:
    containers = [{"resources": {"limits": {"cpu": "1", resource: "1"}}}]
    spec = {"containers": containers, **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name}, "spec": spec}


def exporter(number: int, **spec: Any) -> Json:
    labels = {"app": "nvidia-dcgm-exporter"}
    return {
        "metadata": {"uid": f"u{number}", "name": f"dcgm-{number}", "namespace": "gpus",
                     "labels": labels},
        "spec": {"nodeName": f"node-{number}", "containers": [], **spec},
        "status": {"phase": "Running", "podIP": f"10.0.0.{number}"},
    }  # fmt: skip


def page(number: int) -> str:
    return f"http://10.0.0.{number}:9400/metrics"


class Listing:
    """A cluster with these exporters and server pods."""

    def __init__(self, exporters: list[Json], servers: list[Json] | None = None) -> None:
        self._exporters, self._servers = exporters, servers

    async def get(self, path: str, **params: str) -> Json:
        if path == "/api/v1/pods":
            is_requested = params["labelSelector"].startswith("app in ")
            return {"items": self._exporters if is_requested else []}
        assert (path, params) == (SERVER_PODS, {"labelSelector": "app=vllm"})
        if self._servers is None:
            raise Refused("no", status=403, reason="Forbidden")
        return {"items": self._servers}


def stack_request(target: Json, **telemetry: Any) -> StackRequest:
    url = "http://target" if target.get("kind") else "http://vllm.serving.svc"
    config = small_config(url, deployment={"target": target}, telemetry=telemetry)
    return StackRequest(stack="bench", config=config, environ={})


async def find(
    target: Json, cluster: Listing, **telemetry: Any
) -> tuple[tuple[ClusterExporters, ...], list[str]]:
    """Return the discovered target and the notes."""
    request = stack_request(target, **telemetry)
    notes: list[str] = []
    found = await with_gpu_exporters(request, cast("Cluster", cluster), say=notes.append)
    return cast("BenchmarkConfig", found.config).telemetry.exporters, notes


async def test_exporters_on_target_nodes_are_read() -> None:
    cluster = Listing(
        [exporter(1), exporter(2), exporter(3, hostNetwork=True)],
        [server("vllm-a", "node-1"), server("vllm-b", "node-3"), server("vllm-c", None)],
    )
    (of_pods, of_hosts), notes = await find(OUTSIDE, cluster)
    assert (of_pods.pages, of_pods.host_network) == ((page(1),), False)
    assert (of_hosts.pages, of_hosts.host_network) == ((page(3),), True)
    assert of_pods.namespace == "gpus"
    assert of_pods.labels == {"app": "nvidia-dcgm-exporter"}
    assert of_pods.users_namespace == "serving"
    assert of_pods.users == ("vllm-a", "vllm-b")
    assert notes[0].endswith("are read if they have its GPUs: 2 (telemetry.find_gpus)")


async def test_own_target_is_identified_by_its_deployment() -> None:
    (found,), _ = await find(OWN, Listing([exporter(1), exporter(2)]))
    assert found.pages == (page(1), page(2))
    assert (found.users_namespace, found.users) == ("", ("deployment/target-bench",))


@pytest.mark.parametrize(
    ("target", "cluster", "telemetry"),
    [
        ({"kind": "mock"}, Listing([exporter(1)]), {}),
        (OWN, Listing([]), {}),
        (OWN, Listing([exporter(1)]), {"find_gpus": False}),
        (OWN, Listing([exporter(1)]), {"gpu_telemetry": ["http://192.0.2.1:9400"]}),
        ({}, Listing([exporter(1)]), {}),
        (OUTSIDE, Listing([exporter(1)], None), {}),
        (OUTSIDE, Listing([exporter(1)], [server("vllm-a", "node-1", "memory")]), {}),
        (OUTSIDE, Listing([exporter(1)], [server("vllm-a", "node-2")]), {}),
    ],
)
async def test_no_exporter_without_gpus_of_the_target(
    target: Json, cluster: Listing, telemetry: Json
) -> None:
    found, notes = await find(target, cluster, **telemetry)
    assert (found, notes) == ((), [])


async def test_unread_exporters_are_noted() -> None:
    found, (notes,) = await find(OWN, Listing([exporter(n) for n in range(1, 66)]))
    assert found == ()
    assert "65 exporters are candidates, and a run reads at most 64" in notes


async def test_moved_exporters_keep_the_run_id() -> None:
    ids = set()
    for exporters in ([], [exporter(1)], [exporter(2)]):
        request = await with_gpu_exporters(
            stack_request(OWN), cast("Cluster", Listing(exporters)), say=print
        )
        ids.add(request.plan.identity.run_id)
    assert len(ids) == 1
