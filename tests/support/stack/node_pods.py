"""Small pods on chosen nodes that listen, and connect to each other; nodes that are stopped."""

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
"""The headless Service by which pods have names."""
LABEL = {"app": "node-pod"}
TRY_S = 2.0
"""How long a connection is tried; one that is let through takes milliseconds."""
READY_S = 60
SWITCH_S = 90.0
"""Longest time to stop or start a node."""
_SERVE = f"""
import socket, threading
def serve(listener):
    kept = []  # a connection ends when its client says so
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
    """A pod that runs, and is on a node."""

    cluster: Cluster
    namespace: str
    name: str
    node: str
    address: str

    @property
    def host(self) -> str:
        """Its name for other pods."""
        return f"{self.name}.{SUBDOMAIN}.{self.namespace}.svc.cluster.local"

    def kubectl(self, verb: str, *arguments: str) -> str:
        """What kubectl prints that is asked about this pod."""
        return self.cluster.kubectl(verb, "-n", self.namespace, self.name, *arguments)

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """A kubectl that goes on, in this pod's namespace."""
        place = ("--context", self.cluster.context, "-n", self.namespace)
        environ = dict(self.cluster.environ)
        pipe = subprocess.PIPE
        return subprocess.Popen(("kubectl", *place, *command), env=environ, stdout=pipe, text=True)

    def connect(self, host: str, port: int = PORT) -> str:
        """The address that a server sees of this pod, or the kind of error."""
        return self.kubectl("exec", "--", "python3", "-c", _CONNECT, host, str(port)).strip()


def server(name: str, *, image: str, labels: Mapping[str, str] = NONE, **spec: Any) -> Manifest:
    """A pod that tells each client of its two ports which address the client has, and keeps the
    connection."""
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
    """The part of a pod's spec that pins it."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def headless_service() -> Manifest:
    """The Service that gives names to pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SUBDOMAIN},
        "spec": {"clusterIP": "None", "selector": LABEL, "ports": [{"port": PORT}]},
    }


def start(cluster: Cluster, namespace: str, manifests: Iterable[Manifest]) -> dict[str, NodePod]:
    """Makes objects, waits for the pods among them; these by name."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(items))
    return wait(cluster, namespace)


def wait(cluster: Cluster, namespace: str) -> dict[str, NodePod]:
    """The namespace's pods, when all of them are ready."""
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
    """The link of the node carries at most this rate, `40mbit`, in each direction."""
    switch = str(TOOLS / "node")
    run((switch, "limit", node, rate), environ=cluster.environ, timeout_s=SWITCH_S)
    try:
        yield
    finally:
        run((switch, "limit", node, "none"), environ=cluster.environ, timeout_s=SWITCH_S)


@contextlib.contextmanager
def without_power(cluster: Cluster, node: str) -> Iterator[None]:
    """The node is stopped."""
    switch = str(TOOLS / "node")
    run((switch, "stop", node), environ=cluster.environ, timeout_s=SWITCH_S)
    try:
        yield
    finally:
        run((switch, "start", node), environ=cluster.environ, timeout_s=SWITCH_S)
