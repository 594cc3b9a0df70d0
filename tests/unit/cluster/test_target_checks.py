"""What is known about a target before the run."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.target_probe import PROGRAM, judge_probe, probe_pod
from aiperf_svc.adapters.cluster.preflight.target_service import (
    ServiceAddress,
    judge_service,
    service_address,
)
from aiperf_svc.core.cluster.check import Check
from tests.support.plans import make_plan, named

URL = "http://llm.inference.svc.cluster.local:8000"


def _service(**spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9100}]
    return named("llm", spec={"ports": ports, "selector": {"app": "llm"}, **spec})


def _slice(*ready: bool) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9100}]
    return {"ports": ports, "endpoints": [{"conditions": {"ready": each}} for each in ready]}


def _judge(service: Any, *slices: Any, port: int = 8000, **target: Any) -> Check:
    plan = make_plan(url=URL, target={"kind": "none", **target})
    address = ServiceAddress("inference", "llm")
    return judge_service("target", address, port, plan, service, slices)


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("llm.inference.svc", ServiceAddress("inference", "llm")),
        ("llm.inference.svc.cluster.local", ServiceAddress("inference", "llm")),
        ("llm.inference", ServiceAddress("inference", "llm", is_full=False)),
        ("llm", None),
        ("api.example.com", None),
        ("10.0.0.1", None),
    ],
)
def test_a_service_is_known_by_its_host_name(host: str, found: ServiceAddress | None) -> None:
    assert service_address(host) == found


def test_a_service_that_is_not_ready_fails_with_the_reason() -> None:
    assert _judge(None).detail == "there is no Service llm in namespace inference"
    assert "has no port 80; it has 8000, 9100" in _judge(_service(), port=80).detail
    assert "no pod behind" in _judge(_service(), _slice(False, False)).detail


def test_the_pods_to_name_in_the_config_are_said() -> None:
    check = _judge(_service(), _slice(True, False, True))
    assert check.state == "warning"
    assert check.detail.startswith("2 pods behind Service llm")
    assert check.remedy == (
        "narrow it: deployment.target.pods: "
        '{namespace: inference, labels: {"app": "llm"}, port: 8080}'
    )
    named_pods = {"namespace": "inference", "labels": {"app": "llm"}, "port": 8080}
    assert _judge(_service(), _slice(True), pods=named_pods).state == "ok"


def test_the_pod_that_tries_the_target_runs_as_the_workers_do() -> None:
    selector = {"pool": "load"}
    plan = make_plan(
        url="https://api.example.com",
        image={"name": "r.example/a:1", "pull_secrets": ["s"]},
        placement={"node_selector": selector, "tolerations": [{"key": "spot"}]},
    )
    made = probe_pod(plan, "p")
    spec, (container,) = made["spec"], made["spec"]["containers"]
    assert spec["nodeSelector"] == selector
    assert spec["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    assert container["image"] == "r.example/a:1"
    assert container["command"][4:] == ["api.example.com", "443", "yes", "yes", "10"]
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "preflight"
    compile(PROGRAM, "probe", "exec")


def test_what_the_pod_says_is_the_reason() -> None:
    plan = make_plan(url=URL)
    ended = {"state": {"terminated": {"message": "[Errno 111] Connection refused\n"}}}
    failed = {"status": {"phase": "Failed", "containerStatuses": [ended]}}
    check = judge_probe(plan, failed)
    assert check.state == "failed"
    assert check.detail.endswith("cannot be reached from a pod: [Errno 111] Connection refused")
    assert judge_probe(plan, {"status": {"phase": "Succeeded"}}).state == "ok"
