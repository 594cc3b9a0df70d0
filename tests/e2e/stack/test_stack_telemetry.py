"""A stack reads metrics of its server and GPUs through its own network policies, and creates
objects for a Prometheus operator."""

import base64
import json
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import wait_for
from tests.support.stack import node_pods
from tests.support.stack.gpu_exporter import exporter_pod
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

GROUP = "monitoring.coreos.com"
KINDS = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
USERS = 8
REQUESTS = 10 * USERS
"""Requests of 0.5 s each, in whose time the pages are read more often than means over time need."""
COMPLETED = re.compile(r'aiperf_requests_completed_total{phase="profiling"} (\S+)')
GPU = "nvidia.com/gpu"
READ = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"})
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""
RELEASE = {"release": "test"}


def definition(kind: str) -> dict[str, Any]:
    """Return the smallest custom resource definition of a type."""
    plural = KINDS[kind]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture
def operator_types(cluster: Cluster) -> Iterator[None]:
    """Create the types of a Prometheus operator."""
    names = [f"crd/{plural}.{GROUP}" for plural in KINDS.values()]
    cluster.apply(*map(definition, KINDS))
    cluster.kubectl("wait", "--for=condition=Established", *names)
    yield
    cluster.kubectl("delete", *names)


@pytest.fixture
def node_with_gpu(cluster: Cluster) -> Iterator[None]:
    """Advertise one fake GPU on a node as an extended resource."""
    node = cluster.nodes()[0]

    def offer(number: str | None) -> None:
        status = {"capacity": {GPU: number}, "allocatable": {GPU: number}}
        patch = json.dumps({"status": status})
        cluster.kubectl("patch", "node", node, "--subresource=status", "--patch", patch)

    offer("1")
    yield
    offer(None)


def watched(benchmark: Config) -> None:
    benchmark["load"] = {"concurrency": USERS, "duration": "2m", "grace_period": "5s"}
    benchmark["deployment"].update(monitoring="prometheus-operator", monitoring_labels=RELEASE)


def read_as_the_operator_says(
    cluster: Cluster, monitor: dict[str, Any], reader: node_pods.NodePod
) -> str:
    """Return what a pod reads that follows a PodMonitor."""
    namespace, spec = monitor["metadata"]["namespace"], monitor["spec"]
    labels = ",".join(f"{key}={value}" for key, value in spec["selector"]["matchLabels"].items())
    (pod,) = cluster.objects("pods", "-n", namespace, "-l", labels)
    (endpoint,) = spec["podMetricsEndpoints"]
    (port,) = (
        each["containerPort"]
        for container in pod["spec"]["containers"]
        for each in container["ports"]
        if each["name"] == endpoint["port"]
    )
    credentials = endpoint["authorization"]["credentials"]
    (secret,) = cluster.objects(
        "secrets", "-n", namespace, "--field-selector", f"metadata.name={credentials['name']}"
    )
    token = base64.b64decode(secret["data"][credentials["key"]]).decode()
    url = f"http://{pod['status']['podIP']}:{port}{endpoint['path']}"
    return reader.kubectl("exec", "--", "python3", "-c", READ, url, token)


def test_missing_operator_is_refused_before_creation(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(watched)
    ended = runner.run()
    assert ended.code == ExitCode.ERROR, ended.errors
    assert f"the cluster has no type podmonitors.{GROUP} and no prometheusrules.{GROUP}" in (
        ended.errors
    )
    assert cluster.of_stack(runner.name) == []


@pytest.mark.usefixtures("operator_types", "node_with_gpu")
def test_run_reads_server_and_gpu_metrics(
    cluster: Cluster,
    image: str,
    base_image: str,
    owners_namespace: str,
    make_runner: Callable[[], Runner],
) -> None:
    runner = make_runner()
    generated = "6d4cf56db6-x7k2q"
    mine = f'namespace="{owners_namespace}",pod="target-{runner.name}-{generated}"'
    # A second stack in the namespace, whose name begins with the name of the first.
    others = f'namespace="{owners_namespace}",pod="target-{runner.name}-2-{generated}"'
    pod = exporter_pod(image=base_image, used_by=(mine, others))
    prometheus = node_pods.start(cluster, owners_namespace, [pod])["exporter"]

    def with_gpu(benchmark: Config) -> None:
        watched(benchmark)
        deployment = benchmark["deployment"]
        deployment["namespace"] = {"mode": "existing", "name": owners_namespace}
        deployment["target"] = {
            "kind": "custom",
            "image": image,
            "command": ["python", "-m", "aiperf_svc.mock_server", "--host", "0.0.0.0"],
            "args": ["--port", "8000", "--ttft", "200ms", "--itl", "20ms", "--tokens", "16"],
            "cpu": "100m",
            "memory": "128Mi",
            "gpu": {"count": 1},
        }

    runner.change(with_gpu)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        made = {
            kind: cluster.objects(plural, "-n", owners_namespace) for kind, plural in KINDS.items()
        }
        page = ""

        def has_run_long_enough() -> bool:
            nonlocal page
            page = read_as_the_operator_says(cluster, made["PodMonitor"][0], prometheus)
            found = COMPLETED.search(page)
            return found is not None and float(found[1]) >= REQUESTS

        wait_for(has_run_long_enough)
        # The load ends here, however long the reading took. Measurements are kept.
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.errors
    for kind, objects in made.items():
        (found,) = objects
        assert found["metadata"]["name"] == f"monitoring-{runner.name}", kind
        assert found["metadata"]["labels"].items() >= RELEASE.items()
    assert 'aiperf_run_state{state="' in page
    assert cluster.of_stack(runner.name) == []
    for plural in KINDS.values():
        assert cluster.objects(plural, "-n", owners_namespace) == []

    assert "are read if they have its GPUs: 1 (telemetry.find_gpus)" in ended.errors
    system = runner.summary()["aiperf_svc"]["system"]
    assert [source["problem"] for source in system["sources"]] == ["", ""]
    metrics = system["metrics"]
    assert metrics["server_running_requests"] == pytest.approx(USERS, rel=0.2)
    # The other GPU of the page, which draws as much, belongs to another pod.
    assert metrics["gpu_power"] == pytest.approx(250, rel=0.2)
    (folder,) = runner.artifacts.glob("*")
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "server_metrics_export.jsonl", "server_metrics_export.json", "telemetry.parquet",
        "gpu_telemetry_export.jsonl", "metrics.om",
    }  # fmt: skip
    lines = (folder / "gpu_telemetry_export.jsonl").read_text().splitlines()
    assert {json.loads(line)["gpu_index"] for line in lines} == {0}
