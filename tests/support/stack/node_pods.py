"""Small pods on chosen nodes that listen and connect to each other, and nodes that are stopped."""

import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tests.support.stack.commands import run
from tests.support.stack.real_cluster import TOOLS, Cluster

Manifest = dict[str, Any]
NONE: Mapping[str, str] = MappingProxyType({})
PORT, OTHER_PORT = 5000, 5001
SUBDOMAIN = "pods"
"""The headless Service that gives pods DNS names."""
LABEL = {"app": "node-pod"}
TRY_S = 2.0
"""Time limit of a connection attempt. A permitted connection takes milliseconds."""
READY_S = 60
SWITCH_S = 90.0
"""Time limit to stop or start a node."""
_SERVE = f"""
import socket, threading
def serve(listener):
    kept = []  # clients close the connections
    while True:
        connection, (address, _) = listener.accept()
        connection.sendall(address.encode())
        kept.append(connection)
for listener in [socket.create_server(("", port)) for port in ({OTHER_PORT}, {PORT})]:
    threading.Thread(target=serve, args=(listener,)).start()
print("listening")
"""
_CONNECT = f"""
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout={TRY_S}) as connection:
        print(connection.recv(64).decode())
except OSError as error:
    print(type(error).__name__)
"""


@dataclass(frozen=True, kw_only=True)
class NodePod:
    """A running pod and its node."""

    cluster: Cluster
    namespace: str
    name: str
    node: str
    address: str

    @property
    def host(self) -> str:
        """DNS name for other pods."""
        return f"{self.name}.{SUBDOMAIN}.{self.namespace}.svc.cluster.local"

    def kubectl(self, verb: str, *arguments: str) -> str:
        """Run kubectl on this pod and return the output."""
        return self.cluster.kubectl(verb, "-n", self.namespace, self.name, *arguments)

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """Start kubectl in this pod's namespace."""
        place = ("--context", self.cluster.context, "-n", self.namespace)
        environ = dict(self.cluster.environ)
        pipe = subprocess.PIPE
        return subprocess.Popen(("kubectl", *place, *command), env=environ, stdout=pipe, text=True)

    def connect(self, host: str, port: int = PORT) -> str:
        """Connect and return this pod's address as the server sees it, or the kind of error."""
        return self.kubectl("exec", "--", "python3", "-c", _CONNECT, host, str(port)).strip()


def server(name: str, *, image: str, labels: Mapping[str, str] = NONE, **spec: Any) -> Manifest:
    """Return a pod that keeps connections to two ports and sends each client its address."""
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-uc", _SERVE],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {**LABEL, "name": name, **labels}},
        "spec": {
            "hostname": name,
            "subdomain": SUBDOMAIN,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **spec,
        },
    }


def on_node(node: str) -> dict[str, Any]:
    """Return the pod-spec fields that pin a pod to a node."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def headless_service() -> Manifest:
    """Return the Service that gives pods DNS names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SUBDOMAIN},
        "spec": {"clusterIP": "None", "selector": LABEL, "ports": [{"port": PORT}]},
    }


def start(cluster: Cluster, namespace: str, manifests: Iterable[Manifest]) -> dict[str, NodePod]:
    """Create objects, wait for their pods, and return the pods by name."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(items))
    return wait(cluster, namespace)


def wait(cluster: Cluster, namespace: str) -> dict[str, NodePod]:
    """Wait until all pods of the namespace are ready and return them by name."""
    ready = ("--all", "--for=condition=Ready", f"--timeout={READY_S}s")
    cluster.kubectl("wait", "pods", "-n", namespace, *ready, timeout_s=READY_S + 10)
    return {
        pod["metadata"]["name"]: NodePod(
            cluster=cluster,
            namespace=namespace,
            name=pod["metadata"]["name"],
            node=pod["spec"]["nodeName"],
            address=pod["status"]["podIP"],
        )
        for pod in cluster.objects("pods", "-n", namespace)
    }


@contextlib.contextmanager
def slow_link(cluster: Cluster, node: str, rate: str) -> Iterator[None]:
    """Limit the node's link to this rate, such as `40mbit`, in each direction."""
    switch = str(TOOLS / "node")
    run((switch, "limit", node, rate), environ=cluster.environ, timeout_s=SWITCH_S)
    try:
        yield
    finally:
        run((switch, "limit", node, "none"), environ=cluster.environ, timeout_s=SWITCH_S)


@contextlib.contextmanager
def without_power(cluster: Cluster, node: str) -> Iterator[None]:
    """Stop the node inside the block."""
    switch = str(TOOLS / "node")
    run((switch, "stop", node), environ=cluster.environ, timeout_s=SWITCH_S)
    try:
        yield
    finally:
        run((switch, "start", node), environ=cluster.environ, timeout_s=SWITCH_S)
