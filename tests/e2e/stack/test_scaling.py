"""A real HorizontalPodAutoscaler adds replicas of a Deployment while the load grows."""

import csv
import json
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.commands import run
from tests.support.stack.controllers import BUILD_S
from tests.support.stack.real_cluster import TOOLS, Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster
FINE = (*FINISHED, ExitCode.SLO_MISSED)
READY_S = 120.0
LABELS = {"app": "llm"}
SLOW_START_S = 5
STEP_S, LOAD_S = 20, 150
SLOTS, RATE = 3, 22
"""One replica serves 17 requests per second. The queue grows until the second replica is ready."""
SERVE = (
    *("python", "-P", "-m", "aiperf_svc.mock_server", "--host", "0.0.0.0", "--port", "8000"),
    *("--ttft", "100ms", "--itl", "5ms", "--tokens", "16", "--slow-start", f"{SLOW_START_S}s"),
    *("--slots", str(SLOTS)),
)


def server(namespace: str, image: str) -> list[dict[str, Any]]:
    """Return a mock server with a slow start and an autoscaler that uses its CPU."""
    metadata = {"name": "llm", "namespace": namespace}
    container = {
        "name": "server",
        "image": image,
        "command": list(SERVE),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
    }
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 30}}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": LABELS, "ports": [{"port": 8000}]},
        },
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
                "minReplicas": 1,
                "maxReplicas": 2,
                "metrics": [{"type": "Resource", "resource": cpu}],
            },
        },
    ]


def follow(namespace: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that makes a stack measure the server with a step in the load."""

    def change(benchmark: dict[str, Any]) -> None:
        benchmark["endpoint"] |= {
            "url": f"http://llm.{namespace}:8000",
            "connections": "per-request",
        }
        stages = [{"rate": 1, "duration": f"{STEP_S}s"}, {"rate": RATE, "duration": f"{LOAD_S}s"}]
        benchmark["load"] = {"stages": stages, "grace_period": "5s"}
        benchmark["scaling"] = {}
        benchmark["slo"] = {"goodput": {"time_to_first_token": "500ms"}}
        del benchmark["deployment"]["target"]

    return change


def test_replicas_of_an_autoscaler_are_seen(
    cluster: Cluster, image: str, owners_namespace: str, make_runner: Callable[[], Runner]
) -> None:
    if not cluster.is_ours:
        pytest.skip("E2E_CONTEXT names a cluster, where the tests do not install metrics-server")
    run((str(TOOLS / "metrics-server-up"),), environ=cluster.environ, timeout_s=BUILD_S)
    cluster.apply(*server(owners_namespace, image))
    cluster.kubectl(
        *("-n", owners_namespace, "rollout", "status", "deployment/llm"), timeout_s=READY_S
    )
    runner = make_runner()
    runner.change(follow(owners_namespace))
    ended = runner.run("--json")
    assert ended.code in FINE, ended.errors
    assert "✓ scaling: replicas and what scales them can be watched" in ended.errors
    found = json.loads(ended.out)["results"]["aiperf_svc"]["scaling"]
    (up,) = found["scale_ups"]
    assert up["source"].startswith("Deployment llm")
    assert "cpu" in up["reason"]
    assert (up["before"], up["after"], up["load_changed_s"]) == (1, 2, STEP_S)
    assert up["decision_s"] > 0
    assert SLOW_START_S <= up["scale_up_s"] < 60
    assert up["use_s"] is not None
    assert up["recovery_s"] > up["decision_s"] + up["scale_up_s"]
    (replica,) = found["replicas"]
    moments = replica["moments_s"]
    order = ("created", "scheduled", "running", "ready", "first_token")
    assert list(order) == sorted(order, key=lambda name: moments[name])
    assert moments["created"] > STEP_S
    assert found["ready"][-1][1] == 2
    (folder,) = runner.artifacts.glob("*/")
    with (folder / "scaling.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["replica"], row["after"]) == (replica["name"], "2")
    assert "Stages of each replica" in (folder / "report.html").read_text()
