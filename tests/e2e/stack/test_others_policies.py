"""Network policies of stacks and of other owners, and a target of another owner in the same
cluster. Connections of a stack are open before it needs them."""

from collections.abc import Callable

import pytest

from tests.support.running_command import FINISHED
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config, shrink

pytestmark = pytest.mark.cluster
NAME, PORT, POD_PORT = "inference", 80, 8000


def _serve(cluster: Cluster, namespace: str, *, image: str) -> None:
    metadata = {"name": NAME, "namespace": namespace, "labels": {"app": NAME}}
    listen = ["--host", "0.0.0.0", "--port", str(POD_PORT), "--model", "mock-model"]
    container = {
        "name": "main",
        "image": image,
        "command": ["python", "-m", "aiperf_svc.mock_server", *listen],
        "readinessProbe": {"tcpSocket": {"port": POD_PORT}, "periodSeconds": 1},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    ports = [{"port": PORT, "targetPort": POD_PORT}]
    cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": {"app": NAME}, "ports": ports},
        },
    )
    ready = ("--for=condition=Ready", f"pod/{NAME}", "--timeout=60s")
    cluster.kubectl("wait", "-n", namespace, *ready, timeout_s=90.0)


def test_stack_runs_in_a_restricted_namespace(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    deny = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    metadata = {"name": "deny", "namespace": owners_namespace}
    api = "networking.k8s.io/v1"
    cluster.apply({"apiVersion": api, "kind": "NetworkPolicy", "metadata": metadata, "spec": deny})
    runner = make_runner()
    runner.use("bench-smoke")
    runner.change(shrink)
    where = {"mode": "existing", "name": owners_namespace}
    runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    ended = runner.run()
    assert ended.code in FINISHED, ended.errors
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.of_stack(runner.name) == []


def test_workers_reach_the_pods_of_a_named_service(
    cluster: Cluster, image: str, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    _serve(cluster, owners_namespace, image=image)
    runner, host = make_runner(), f"{NAME}.{owners_namespace}"

    def elsewhere(benchmark: Config) -> None:
        benchmark["endpoint"]["url"] = f"http://{host}"
        benchmark["deployment"]["target"] = {"kind": "none"}

    runner.change(elsewhere)
    ended = runner.run()
    assert ended.code in FINISHED, ended.errors
    where = f"app={NAME} in namespace {owners_namespace}, port {POD_PORT}"
    assert f"reach its pods ({where}) and nothing else" in ended.errors
    assert f"✓ target: a pod can reach {host}:{PORT}, in namespace " in ended.errors
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.of_stack(runner.name) == []
