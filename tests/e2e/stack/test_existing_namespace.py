"""A stack as a guest in a namespace that somebody else owns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_cluster import Cluster
from real_stack import Stack, restarts

pytestmark = pytest.mark.cluster


def owners_objects(image: str) -> str:
    """A pod and a ConfigMap whose labels are like ours but for the stack's own."""
    labels = {"app.kubernetes.io/name": "aiperf-svc", "app.kubernetes.io/component": "worker"}
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "labels": labels},
        "data": {"of": "the owner"},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "application", "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["python", "-c", "import signal; signal.pause()"],
                }
            ],
        },
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [settings, pod]})


def as_guest(stack: Stack, namespace: str) -> None:
    """Change the stack's file: into a namespace that exists."""
    content = yaml.safe_load(stack.file.read_text())
    deployment = content["config"]["aiperf:benchmark"]["deployment"]
    deployment["namespace"] = {"mode": "existing", "name": namespace}
    # Providers of before July 2025 may miss that an object is gone; they look again after this.
    deployment["delete_timeout"] = "45s"
    stack.file.write_text(yaml.safe_dump(content, sort_keys=False))


def test_a_guest_takes_only_its_own_things_along(
    cluster: Cluster,
    image: str,
    make_stack: Callable[[], Stack],
    owners_namespace: str,
    tmp_path: Path,
) -> None:
    cluster.kubectl("apply", "-n", owners_namespace, "-f", "-", stdin=owners_objects(image))
    ready = ("--for=condition=Ready", "pod/application", "--timeout=60s")
    cluster.kubectl("wait", "-n", owners_namespace, *ready, timeout_s=90.0)
    before = cluster.of_namespace(owners_namespace)
    owned = owners_state(cluster, owners_namespace)

    stack = make_stack()
    as_guest(stack, owners_namespace)
    stack.up()
    outputs = stack.outputs()
    assert outputs["namespace"] == owners_namespace
    assert cluster.objects("namespaces", "-l", f"aiperf.dev/stack={stack.name}") == []
    status, summary = stack.measure(outputs, tmp_path / "results")
    assert status.state == "done"
    assert summary["aiperf_svc"]["accounts"]["violations"] == []
    pods = stack.pods(owners_namespace)
    assert len(pods) == outputs["pods"]
    assert restarts(pods) == {}

    stack.destroy()
    assert cluster.left_of(stack.name) == []
    assert cluster.of_namespace(owners_namespace) == before
    assert owners_state(cluster, owners_namespace) == owned


def owners_state(cluster: Cluster, namespace: str) -> list[Any]:
    """Everything that the server says about the owner's objects and the namespace itself."""
    objects = cluster.objects("pods,configmaps", "-n", namespace)
    owner = cluster.objects("namespaces", f"--field-selector=metadata.name={namespace}")
    return [*objects, *owner]
