"""Pods on different nodes reach each other as on one node, and network policies apply between them.

Measurements between nodes and the tests of lost nodes rely on this.
"""

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack.node_pods import (
    OTHER_PORT,
    PORT,
    Manifest,
    NodePod,
    headless_service,
    on_node,
    server,
    start,
)
from tests.support.stack.real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.two_nodes, pytest.mark.gate]

BOTH_WAYS = pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])
DROPPED = "TimeoutError"
"""Error of a connection that a policy forbids."""


def role(name: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {"role": name}}}


def policy(name: str, kind: str, rules: list[dict[str, Any]]) -> Manifest:
    """Return a policy for what pods of a role may receive (`Ingress`) or send (`Egress`)."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{name}-{kind.lower()}"},
        "spec": {**role(name), "policyTypes": [kind], kind.lower(): rules},
    }


def service(pod: str) -> Manifest:
    """Return a Service with its own address for one pod."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": pod},
        "spec": {"selector": {"name": pod}, "ports": [{"port": PORT}]},
    }


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"two-nodes-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, timeout_s=120.0)


@pytest.fixture(scope="module")
def pods(cluster: Cluster, base_image: str, namespace: str) -> dict[str, NodePod]:
    """Start one pod of each role on each node: `open-0` and so on."""
    only_port = [{"port": PORT}]
    made = [
        headless_service(),
        policy("guarded", "Ingress", [{"from": [role("friend")], "ports": only_port}]),
        policy("confined", "Egress", [{"to": [role("open")], "ports": only_port}]),
    ]
    for number, node in enumerate(cluster.nodes()[:2]):
        made.append(service(f"open-{number}"))
        for name in ("open", "guarded", "friend", "confined"):
            labels = {"role": name}
            pod = f"{name}-{number}"
            made.append(server(pod, image=base_image, labels=labels, **on_node(node)))
        host = {"hostNetwork": True, **on_node(node)}
        made.append(server(f"host-{number}", image=base_image, **host))
    return start(cluster, namespace, made)


@BOTH_WAYS
def test_pod_reaches_pods_of_the_other_node(
    pods: dict[str, NodePod], here: int, there: int
) -> None:
    client, other = pods[f"open-{here}"], pods[f"open-{there}"]
    assert client.node != other.node
    # The server sees the client's own address, so nothing translates it.
    for host in (other.address, other.host, other.name):
        assert client.connect(host) == client.address
    assert client.connect(other.address, OTHER_PORT) == client.address


@BOTH_WAYS
def test_policy_admits_one_port_from_the_other_node(
    pods: dict[str, NodePod], here: int, there: int
) -> None:
    friend, guarded = pods[f"friend-{here}"], pods[f"guarded-{there}"]
    assert friend.connect(guarded.address) == friend.address
    assert friend.connect(guarded.address, OTHER_PORT) == DROPPED
    assert pods[f"open-{here}"].connect(guarded.address) == DROPPED


@BOTH_WAYS
def test_policy_allows_one_port_to_the_other_node(
    pods: dict[str, NodePod], here: int, there: int
) -> None:
    confined, other = pods[f"confined-{here}"], pods[f"open-{there}"]
    assert confined.connect(other.address) == confined.address
    assert confined.connect(other.address, OTHER_PORT) == DROPPED
    assert confined.connect(pods[f"friend-{there}"].address) == DROPPED


@BOTH_WAYS
def test_host_network_pod_has_the_node_address(
    cluster: Cluster, pods: dict[str, NodePod], here: int, there: int
) -> None:
    # Both listen on the same ports, which is impossible in a shared network namespace.
    host = pods[f"host-{there}"]
    addresses = {
        node["metadata"]["name"]: each["address"]
        for node in cluster.objects("nodes")
        for each in node["status"]["addresses"]
        if each["type"] == "InternalIP"
    }
    assert host.address == addresses[host.node]
    client = pods[f"open-{here}"]
    assert client.connect(host.address) == client.address


def test_pods_that_avoid_each_other_get_different_nodes(
    cluster: Cluster, base_image: str, owners_namespace: str
) -> None:
    avoid = {"labelSelector": {"matchLabels": {"spread": "yes"}}}
    term = {**avoid, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made = [
        server(f"rank-{rank}", image=base_image, labels={"spread": "yes"}, affinity=apart)
        for rank in range(2)
    ]
    spread = start(cluster, owners_namespace, made)
    assert len({pod.node for pod in spread.values()}) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_kubectl_reaches_into_the_pods_of_each_node(
    pods: dict[str, NodePod], tmp_path: Path, number: int
) -> None:
    pod = pods[f"open-{number}"]
    assert pod.kubectl("exec", "--", "hostname").strip() == pod.name
    assert pod.kubectl("logs").strip() == "listening"
    with forwarded(pod) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        assert connection.recv(64) == b"127.0.0.1"
    (tmp_path / "sent").write_text("some text")
    place = f"{pod.namespace}/{pod.name}:/tmp/sent"
    pod.cluster.kubectl("cp", str(tmp_path / "sent"), place)
    pod.cluster.kubectl("cp", place, str(tmp_path / "received"))
    assert (tmp_path / "received").read_text() == "some text"


@contextlib.contextmanager
def forwarded(pod: NodePod) -> Iterator[int]:
    """Forward a local port to the pod's and yield it."""
    with pod.popen("port-forward", f"pod/{pod.name}", f":{PORT}") as process:
        assert process.stdout
        line = process.stdout.readline()  # Forwarding from 127.0.0.1:43211 -> 5000
        try:
            yield int(line.partition(" -> ")[0].rpartition(":")[2])
        finally:
            process.terminate()
