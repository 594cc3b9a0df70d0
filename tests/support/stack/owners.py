"""Objects of another owner in a namespace that stacks share. They must not change."""

from typing import Any

from tests.support.stack.real_cluster import Cluster


def settle(cluster: Cluster, namespace: str, *, image: str) -> None:
    """Create a pod and a ConfigMap whose labels are like ours except for the stack's own. Wait
    until the pod is ready."""
    cluster.apply(*_objects(image, namespace))
    ready = ("--for=condition=Ready", "pod/application", "--timeout=60s")
    cluster.kubectl("wait", "-n", namespace, *ready, timeout_s=90.0)


def state(cluster: Cluster, namespace: str) -> list[Any]:
    """Return the server's copy of the owner's objects and of the namespace."""
    objects = cluster.objects("pods,configmaps", "-n", namespace)
    owner = cluster.objects("namespaces", f"--field-selector=metadata.name={namespace}")
    return [*objects, *owner]


def _objects(image: str, namespace: str) -> tuple[dict[str, Any], ...]:
    labels = {"app.kubernetes.io/name": "aiperf-svc", "app.kubernetes.io/component": "worker"}
    command = ["python", "-c", "import signal; signal.pause()"]
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": namespace, "labels": labels},
        "data": {"of": "the owner"},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "application", "namespace": namespace, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image, "command": command}],
        },
    }
    return settings, pod
