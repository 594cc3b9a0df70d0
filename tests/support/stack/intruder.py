"""Attacks from an unauthorised pod. Each attack is the source of a Python program that runs in the
pod with the service image's packages and prints JSON."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from tests.support.stack.real_cluster import Cluster

TRY_S = 3.0
"""Time limit of an attempt. A permitted connection takes milliseconds."""
_CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def attempt(address):
    try:
        socket.create_connection(tuple(address), timeout=%(try_s)s).close()
        return "open"
    except OSError as error:
        return type(error).__name__
addresses = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(addresses)) as pool:
    states = list(pool.map(attempt, addresses))
print(json.dumps({f"{host}:{port}": state for (host, port), state in zip(addresses, states)}))
"""
_SHAKE_HANDS = """
import json, sys, time, zmq
from concurrent.futures import ThreadPoolExecutor
from zmq.utils.monitor import recv_monitor_message
def attempt(client):
    address, kind, server_key, public, secret = client
    found, context = [], zmq.Context()
    client = context.socket(getattr(zmq, kind))
    client.linger = 0
    if server_key:
        client.curve_serverkey, client.curve_publickey, client.curve_secretkey = (
            key.encode() for key in (server_key, public, secret)
        )
    monitor = client.get_monitor_socket()
    client.connect(address)
    # A rejected client reconnects until it is closed.
    end = time.monotonic() + %(try_s)s
    while monitor.poll(max(0, int((end - time.monotonic()) * 1000))):
        event = recv_monitor_message(monitor)["event"]
        found.append(zmq.Event(event).name)
        if event == zmq.Event.HANDSHAKE_SUCCEEDED or time.monotonic() > end:
            break
    context.destroy(0)
    return found
clients = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(clients)) as pool:
    print(json.dumps(list(pool.map(attempt, clients))))
"""


@dataclass(frozen=True)
class Keys:
    """Keys of a ZeroMQ client: the server's public key and its own pair. Empty means no CURVE."""

    server: str = ""
    public: str = ""
    secret: str = ""


class Intruder:
    """A pod that does not belong to the stack."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster, self._namespace, self.name = cluster, namespace, name

    def connect(self, addresses: Iterable[tuple[str, int]]) -> dict[str, str]:
        """Return `open` or the kind of error for each address."""
        found: dict[str, str] = self._run(_CONNECT, list(addresses))
        return found

    def shake_hands(self, clients: Iterable[tuple[str, str, Keys]]) -> list[list[str]]:
        """Connect ZeroMQ clients with these addresses, kinds and keys, and return their events."""
        requested = [[address, kind, *astuple(keys)] for address, kind, keys in clients]
        found: list[list[str]] = self._run(_SHAKE_HANDS, requested)
        return found

    def _run(self, program: str, argument: Any) -> Any:
        command = ("python", "-c", program % {"try_s": TRY_S}, json.dumps(argument))
        where = ("-n", self._namespace, self.name, "--")
        return json.loads(self._cluster.kubectl("exec", *where, *command))


def intrude(
    cluster: Cluster, namespace: str, name: str, *, image: str, labels: Mapping[str, str]
) -> Intruder:
    """Create an intruder's pod and wait until it runs."""
    idle = ("python", "-c", "import signal; signal.pause()")
    put_pod(cluster, namespace, name, image=image, command=idle, labels=labels)
    return Intruder(cluster, namespace, name)


def put_pod(
    cluster: Cluster,
    namespace: str,
    name: str,
    *,
    image: str,
    command: tuple[str, ...],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Create a pod with one container that satisfies Pod Security, and wait until it runs."""
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
            },
        }
    )
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", f"pod/{name}")
    field = f"--field-selector=metadata.name={name}"
    (found,) = cluster.objects("pods", "-n", namespace, field)
    return found
