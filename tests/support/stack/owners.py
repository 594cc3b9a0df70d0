"""What somebody else has in a namespace in which stacks are guests: it stays as it is."""

from typing import Any

from tests.support.stack.real_cluster import Cluster


def settle(cluster: Cluster, namespace: str, *, image: str) -> None:
    """Put a pod and a ConfigMap there, whose labels are like ours but for the stack's own; the pod
    runs in the end."""
    cluster.apply(*_objects(image, namespace))
    ready = ("--for=condition=Ready", "pod/application", "--timeout=60s")
    cluster.kubectl("wait", "-n", namespace, *ready, timeout_s=90.0)


def state(cluster: Cluster, namespace: str) -> list[Any]:
    """Everything that the server says about the owner's objects and the namespace itself."""
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
