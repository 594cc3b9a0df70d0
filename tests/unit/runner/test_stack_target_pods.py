"""The runner narrows the way to a target that is a Service, and nothing that the file says."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.config.target import TargetPods
from aiperf_svc.runner.stack.discovery import with_target_pods
from aiperf_svc.runner.stack.request import StackRequest

PODS = TargetPods(namespace="models", labels={"app": "llm"}, port=8080)


class OneService:
    """A cluster with Service `llm` in namespace `models`, from port 80 to its pods' 8080."""

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        if path == "/api/v1/namespaces/models/services/llm":
            return {"spec": {"ports": [{"port": 80}], "selector": {"app": "llm"}}}
        if path == "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices":
            return {"items": [{"ports": [{"name": "", "port": 8080}]}]}
        raise Refused("none", status=404, reason="NotFound")


def request_for(url: str, **deployment: Any) -> StackRequest:
    return StackRequest(
        stack="s", config=parse_config(benchmark(url, **deployment), ""), environ={}
    )


def benchmark(url: str, **deployment: Any) -> dict[str, Any]:
    return {
        "endpoint": {"url": url, "model": "m"},
        "load": {"concurrency": 1, "requests": 1},
        "deployment": {"ttl": "1h", **deployment},
    }


async def narrowed(request: StackRequest) -> tuple[StackRequest, list[str]]:
    said: list[str] = []
    found = await with_target_pods(request, cast("Cluster", OneService()), say=said.append)
    return found, said


@pytest.mark.parametrize("host", ["llm.models", "llm.models.svc.cluster.local"])
async def test_pods_of_a_target_service_are_found(host: str) -> None:
    request = request_for(f"http://{host}")
    found, said = await narrowed(request)
    assert found.config.deployment.target.pods == PODS
    assert found.plan.notes == ()
    assert "app=llm in namespace models, port 8080" in said[0]


def over_addresses(**how: Any) -> StackRequest:
    """A stack whose trials measure two Services, each with pods of its own."""
    urls = ["http://llm.models", "http://other.models.svc"]
    experiment = {"product": {"endpoint.url": urls}, "parallel": how.pop("parallel", 1)}
    config = parse_config({**benchmark(urls[0], ttl="2h"), "experiment": experiment}, "")
    return StackRequest(stack="s", config=config, environ={}, **how)


async def test_shapes_with_several_addresses_keep_the_way_to_their_own() -> None:
    request = over_addresses()
    found, said = await narrowed(request)
    assert found is request
    assert said == []
    first, second = (
        next(p.egress for p in plan.policies if p.name == "to-target") for plan in found.plans
    )
    assert first != second


async def test_a_stack_of_one_shape_is_told_the_pods_of_its_own_target() -> None:
    found, said = await narrowed(over_addresses(only_shape=1, parallel=2))
    (plan,) = found.plans
    assert plan.config.deployment.target.pods == PODS
    assert len(said) == 1
    other, said = await narrowed(over_addresses(only_shape=2, parallel=2))
    assert (other.plan.inference.endpoint.url, said) == ("http://other.models.svc", [])


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
async def test_what_the_file_says_or_the_cluster_does_not_know_stays(
    url: str, deployment: dict[str, Any]
) -> None:
    request = request_for(url, **deployment)
    found, said = await narrowed(request)
    assert found is request
    assert said == []
