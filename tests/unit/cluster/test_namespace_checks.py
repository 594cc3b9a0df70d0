"""Whether a namespace and the images on nodes suit a stack."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.images import judge_image
from aiperf_svc.adapters.cluster.preflight.namespace_checks import (
    ENFORCE,
    judge_mesh,
    judge_namespace,
    judge_pod_security,
    judge_time_left,
)
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import guest_plan, make_plan, named, node, to_plan

IMAGE = {"name": "registry.example/team/aiperf:1"}


def _space(**labels: str) -> dict[str, Any]:
    return named("theirs", metadata={"labels": labels}, status={"phase": "Active"})


@pytest.mark.parametrize(
    ("mode", "namespace", "state"),
    [
        ("existing", _space(), "ok"),
        ("existing", None, "failed"),
        ("existing", {**_space(), "status": {"phase": "Terminating"}}, "failed"),
        ("create", None, "ok"),
        ("create", _space(), "failed"),
        ("create", _space(**{STACK_LABEL: "bench"}), "ok"),
        ("create", _space(**{STACK_LABEL: "other"}), "failed"),
        (
            "create",
            {**_space(**{STACK_LABEL: "bench"}), "status": {"phase": "Terminating"}},
            "failed",
        ),
    ],
)
def test_namespace_must_match_the_configured_mode(mode: str, namespace: Any, state: str) -> None:
    plan = make_plan(namespace={"name": "theirs", "mode": mode})
    check = judge_namespace(plan, namespace)
    assert check.state == state
    assert bool(check.remedy) == (state == "failed")


@pytest.mark.parametrize(
    ("level", "host_network", "state"),
    [
        ("restricted", False, "ok"),
        ("restricted", True, "failed"),
        ("baseline", True, "failed"),
        ("privileged", True, "ok"),
    ],
)
def test_stricter_pod_security_fails(level: str, host_network: bool, state: str) -> None:
    plan = guest_plan(placement={"host_network": host_network})
    assert judge_pod_security(plan, _space(**{ENFORCE: level})).state == state
    assert judge_pod_security(plan, _space()).state == "ok"


@pytest.mark.parametrize(
    ("label", "value", "state"),
    [
        ("istio-injection", "enabled", "warning"),
        ("istio-injection", "disabled", "ok"),
        ("istio.io/rev", "1-20", "warning"),
        ("istio.io/dataplane-mode", "ambient", "warning"),
        ("istio.io/dataplane-mode", "none", "ok"),
    ],
)
def test_a_mesh_is_warned_about(label: str, value: str, state: str) -> None:
    assert judge_mesh(_space(**{label: value})).state == state


def _with(*names: str) -> dict[str, Any]:
    return node(images=[{"names": list(names)}])


def test_image_on_every_node_is_ok() -> None:
    plan = make_plan(image=IMAGE)
    assert judge_image(plan, [_with(IMAGE["name"])]).state == "ok"
    check = judge_image(plan, [_with(IMAGE["name"]), _with()])
    assert check.state == "not checked"
    assert "listed by 1 of 2 nodes" in check.detail


@pytest.mark.parametrize(
    "image", [{**IMAGE, "pull_policy": "Never"}, {"name": "localhost/aiperf:1"}]
)
def test_image_never_pulled_must_be_listed(image: dict[str, str]) -> None:
    check = judge_image(make_plan(image=image), [_with()])
    assert check.state == "warning"
    assert check.remedy


def test_remedy_names_the_image_key_of_a_job() -> None:
    images = ["localhost/one:1", "localhost/two:1"]
    data = {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"duration": "1s", "concurrency": 1},
        "experiment": {"product": {"deployment.target.image": images}, "fan_out": "jobs"},
        "deployment": {"target": {"kind": "custom", "image": images[0], "command": ["serve"]}},
    }
    plan = to_plan(parse_benchmark(data, "test"), stack="s", version="1", image=IMAGE["name"])
    remedy = judge_image(plan, [_with(IMAGE["name"])]).remedy
    assert "name it in deployment.target.image, or" in remedy


def test_remedy_names_the_key_of_the_missing_image() -> None:
    config = parse_benchmark({"workload": {"kind": "iperf", "image": "localhost/tool:1"}}, "test")
    plan = to_plan(config, stack="net", version="1", image=IMAGE["name"])
    remedy = judge_image(plan, [_with(IMAGE["name"])]).remedy
    assert "name it in workload.image, or" in remedy
    plan = to_plan(config, stack="net", version="1", image="localhost/aiperf:1")
    remedy = judge_image(plan, [_with()]).remedy
    assert "name it in deployment.image.name and workload.image, or" in remedy


def test_short_names_are_docker_hubs() -> None:
    for name, listed in (("a:1", "docker.io/library/a:1"), ("o/a:1", "docker.io/o/a:1")):
        assert judge_image(make_plan(image={"name": name}), [_with(listed)]).state == "ok"


@pytest.mark.parametrize(
    ("minutes", "state"),
    [
        (0, "ok"),
        (8, "ok"),
        (9, "warning"),
        (11, "warning"),
        (18, "warning"),
        (19, "failed"),
        (60, "failed"),
    ],
)
def test_existing_stack_needs_time_for_another_run(minutes: int, state: str) -> None:
    """Out of 20 minutes: 5 + 5 until target and services are ready, 30 s + 1 m of load."""
    load = {"concurrency": 1, "duration": "1m", "grace_period": "30s"}
    plan = make_plan(load=load, ttl="20m")
    created = datetime(2026, 1, 2, tzinfo=UTC)
    now = created + timedelta(minutes=minutes)
    check = judge_time_left(plan, "2026-01-02T00:00:00Z", now)
    assert check.state == state
    assert state == "ok" or "aiperf-svc gc bench" in check.remedy
    assert "before its deadline" in check.detail
