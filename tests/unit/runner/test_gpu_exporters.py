"""The runner finds the exporters of a target's GPUs, and says which GPUs are the target's."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.telemetry import ClusterExporters
from aiperf_svc.runner.stack.discovery import with_gpu_exporters
from aiperf_svc.runner.stack.request import StackRequest

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
    """A cluster with these exporters and pods of the server."""

    def __init__(self, exporters: list[Json], servers: list[Json] | None = None) -> None:
        self._exporters, self._servers = exporters, servers

    async def get(self, path: str, **params: str) -> Json:
        if path == "/api/v1/pods":
            is_asked = params["labelSelector"].startswith("app in ")
            return {"items": self._exporters if is_asked else []}
        assert (path, params) == (SERVER_PODS, {"labelSelector": "app=vllm"})
        if self._servers is None:
            raise Refused("no", status=403, reason="Forbidden")
        return {"items": self._servers}


def stack_request(target: Json, **telemetry: Any) -> StackRequest:
    url = "http://target" if target.get("kind") else "http://vllm.serving.svc"
    benchmark: Json = {
        "endpoint": {"url": url, "model": "m"},
        "load": {"concurrency": 1, "requests": 1},
        "deployment": {"target": target},
        "telemetry": telemetry,
    }
    config = BenchmarkConfig.model_validate(benchmark)
    return StackRequest(stack="bench", config=config, environ={})


async def find(
    target: Json, cluster: Listing, **telemetry: Any
) -> tuple[tuple[ClusterExporters, ...], list[str]]:
    """What was found, and the notes."""
    request = stack_request(target, **telemetry)
    said: list[str] = []
    found = await with_gpu_exporters(request, cast("Cluster", cluster), say=said.append)
    return cast("BenchmarkConfig", found.config).telemetry.exporters, said


async def test_those_on_the_nodes_of_the_servers_pods_are_read_for_the_gpus_of_these_pods() -> None:
    cluster = Listing(
        [exporter(1), exporter(2), exporter(3, hostNetwork=True)],
        [server("vllm-a", "node-1"), server("vllm-b", "node-3"), server("vllm-c", None)],
    )
    (of_pods, of_hosts), said = await find(OUTSIDE, cluster)
    assert (of_pods.pages, of_pods.host_network) == ((page(1),), False)
    assert (of_hosts.pages, of_hosts.host_network) == ((page(3),), True)
    assert of_pods.namespace == "gpus"
    assert of_pods.labels == {"app": "nvidia-dcgm-exporter"}
    assert of_pods.users_namespace == "serving"
    assert of_pods.users == ("vllm-a", "vllm-b")
    assert said[0].endswith("are read if they have its GPUs: 2 (telemetry.find_gpus)")


async def test_where_the_stacks_own_target_will_be_is_not_known_and_its_deployment_is() -> None:
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
async def test_nothing_is_read_that_nobody_asked_for_or_that_has_no_gpu_of_the_target(
    target: Json, cluster: Listing, telemetry: Json
) -> None:
    found, said = await find(target, cluster, **telemetry)
    assert (found, said) == ((), [])


async def test_more_exporters_than_a_run_reads_are_said() -> None:
    found, (said,) = await find(OWN, Listing([exporter(n) for n in range(1, 66)]))
    assert found == ()
    assert "65 exporters are candidates, and a run reads at most 64" in said


async def test_exporters_that_have_moved_make_no_other_run() -> None:
    ids = set()
    for exporters in ([], [exporter(1)], [exporter(2)]):
        request = await with_gpu_exporters(
            stack_request(OWN), cast("Cluster", Listing(exporters)), say=str
        )
        ids.add(request.plan.identity.run_id)
    assert len(ids) == 1
