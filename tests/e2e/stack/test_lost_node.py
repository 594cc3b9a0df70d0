"""A node loses power, as seen from the other node. Its pods become silent and return with it."""

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.stack.node_pods import PORT, NodePod, on_node, server, start, wait, without_power
from tests.support.stack.real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.two_nodes]

NOTICED_S = 90
"""Longest time until the API server says that a node is silent. It takes 45 s."""
_LISTEN = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(connection.recv(64).decode())
connection.recv(64)
"""


def test_lost_node_returns_with_its_pods(
    cluster: Cluster, base_image: str, owners_namespace: str
) -> None:
    if not cluster.is_ours:
        pytest.skip("only nodes of tests/cluster are stopped")
    first, second = cluster.nodes()
    made = [
        server("stays", image=base_image, **on_node(first)),
        server("lost", image=base_image, **on_node(second)),
    ]
    pods = start(cluster, owners_namespace, made)
    client, lost = pods["stays"], pods["lost"]
    with listening(client, lost) as listener, without_power(cluster, second):
        is_silent = ("--for=condition=Ready=Unknown", f"--timeout={NOTICED_S}s")
        cluster.kubectl("wait", f"node/{second}", *is_silent, timeout_s=NOTICED_S + 10)
        assert client.connect(lost.address) == "TimeoutError"
        assert listener.poll() is None
    back = wait(cluster, owners_namespace)["lost"]
    assert back.node == second
    assert client.connect(back.address) == client.address


@contextlib.contextmanager
def listening(client: NodePod, other: NodePod) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that ends when the connection between the two pods ends."""
    program = ("python3", "-uc", _LISTEN, other.address, str(PORT))
    with client.popen("exec", client.name, "--", *program) as process:
        assert process.stdout
        assert process.stdout.readline().strip() == client.address
        try:
            yield process
        finally:
            process.terminate()
