"""Who gets at a running stack, and what its pods may do."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import zmq
from intruder import Intruder, intrude
from real_cluster import Cluster
from real_stack import Config, Stack, modest

from aiperf_svc.protocol.ports import Port

pytestmark = pytest.mark.cluster

CONTROLLER = "system-controller"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A stack in the middle of a long measurement."""

    stack: Stack
    outputs: dict[str, Any]
    pods: list[dict[str, Any]]

    @property
    def namespace(self) -> str:
        return str(self.outputs["namespace"])


def for_long(benchmark: Config) -> None:
    benchmark["load"] |= {"duration": "10m", "grace_period": "1s"}


@pytest.fixture(scope="module")
def running(make_shared_stack: Callable[[], Stack]) -> Iterator[Running]:
    stack = make_shared_stack()
    stack.change(modest)
    stack.change(for_long)
    stack.up()
    outputs = stack.outputs()
    yield Running(stack=stack, outputs=outputs, pods=stack.pods(outputs["namespace"]))
    stack.destroy()


@pytest.fixture(scope="module")
def stranger(cluster: Cluster, image: str, running: Running) -> Intruder:
    """In the stack's namespace, and without its label."""
    return intrude(cluster, running.namespace, "stranger", image=image, labels={"app": "other"})


@pytest.fixture(scope="module")
def impostor(cluster: Cluster, image: str, running: Running) -> Intruder:
    """With a worker's labels, so that the policies let it through."""
    labels = {
        "aiperf.dev/stack": running.stack.name,
        "app.kubernetes.io/component": "worker",
    }
    return intrude(cluster, running.namespace, "impostor", image=image, labels=labels)


def test_pods_run_without_root_rights_tokens_and_a_root_to_write_to(
    cluster: Cluster, running: Running
) -> None:
    assert len(running.pods) == running.outputs["pods"]
    for pod in running.pods:
        name, spec = pod["metadata"]["name"], pod["spec"]
        where = ("-n", running.namespace, name, "--")
        own = json.loads(cluster.kubectl("exec", *where, "python", "-c", LOOK_AROUND))
        assert own["uid"] > 0, name
        assert own["gid"] > 0, name
        assert own["capabilities"] == 0, name
        assert own["root"] == "Read-only file system", name
        has_token = pod["metadata"]["labels"]["app.kubernetes.io/component"] == "deadline"
        assert own["token"] == has_token, name
        assert not spec.get("hostNetwork"), name
    (made,) = cluster.objects("namespaces", "-l", f"aiperf.dev/stack={running.stack.name}")
    assert made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


LOOK_AROUND = """
import json, os, pathlib
try:
    pathlib.Path("/written").write_text("")
    root = "writable"
except OSError as error:
    root = error.strerror
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "root": root,
    "capabilities": int(status["CapBnd"], 16),
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
}))
"""


def test_the_results_api_answers_nobody_without_the_token(running: Running) -> None:
    with running.stack.port_forward(running.outputs) as url:
        assert answer(url, "/healthz") == 200
        for path in ("/v1/status", "/v1/results", "/v1/summary", "/metrics"):
            assert answer(url, path) == 401
            assert answer(url, path, token="wrong") == 401
        assert answer(url, "/v1/status", token=running.outputs["resultsToken"]) == 200


def answer(url: str, path: str, *, token: str = "") -> int:
    """Status of the answer to a GET."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_foreign_pod_reaches_no_port_but_that_of_the_results(
    running: Running, stranger: Intruder
) -> None:
    closed = set()
    for pod in running.pods:
        address = pod["status"]["podIP"]
        for container in pod["spec"]["containers"]:
            closed |= {(address, p["containerPort"]) for p in container.get("ports", ())}
    results = {(address, port) for address, port in closed if port == Port.RESULTS_API}
    assert len(results) == 1
    found = stranger.connect(sorted(closed))
    opened = {address for address, state in found.items() if state == "open"}
    assert opened == {f"{address}:{port}" for address, port in results}
    assert len(found) > 8
    assert set(found.values()) == {"open", "TimeoutError"}


@pytest.mark.parametrize("port", [Port.EVENTS_OUT, Port.CREDIT_DROP, Port.RECORDS])
def test_a_client_without_the_stack_s_keys_gets_nowhere(
    cluster: Cluster, running: Running, impostor: Intruder, port: Port
) -> None:
    component = {Port.EVENTS_OUT: CONTROLLER, Port.CREDIT_DROP: "timing-manager"}.get(
        port, "records-manager"
    )
    (pod,) = running.stack.pods(running.namespace, component)
    address = f"tcp://{pod['status']['podIP']}:{int(port)}"
    if port is Port.RECORDS:
        # Not even a worker has a way to the records; from outside there is the port-forward.
        assert impostor.connect([(pod["status"]["podIP"], port)]) == {
            address.removeprefix("tcp://"): "TimeoutError"
        }
        return
    keys = keys_of(cluster, running)
    theirs = (keys["client.public"], keys["client.secret"])
    assert impostor.shake_hands(address, server=keys["server.public"], pair=theirs)[-1] == (
        "HANDSHAKE_SUCCEEDED"
    )
    own_public, own_secret = (key.decode() for key in zmq.curve_keypair())
    other_server = zmq.curve_keypair()[0].decode()
    without_keys = impostor.shake_hands(address)
    with_others = impostor.shake_hands(address, server=other_server, pair=(own_public, own_secret))
    for events in (without_keys, with_others):
        assert "CONNECTED" in events
        assert "HANDSHAKE_SUCCEEDED" not in events
    with_server_s = impostor.shake_hands(
        address, server=keys["server.public"], pair=(own_public, own_secret)
    )
    assert "HANDSHAKE_SUCCEEDED" not in with_server_s


def keys_of(cluster: Cluster, running: Running) -> dict[str, str]:
    """The stack's own keys."""
    label = ("-l", f"aiperf.dev/stack={running.stack.name}")
    (secret,) = (
        found
        for found in cluster.objects("secrets", "-n", running.namespace, *label)
        if found["metadata"]["name"].startswith("keys-")
    )
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
