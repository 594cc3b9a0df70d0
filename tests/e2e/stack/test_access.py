"""Who gets at a running stack, and what its pods may do."""

import base64
import json
import time
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

pytestmark = [pytest.mark.cluster, pytest.mark.gate]

LET_IN_S = 30.0


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
    intruder = intrude(cluster, running.namespace, "impostor", image=image, labels=labels)
    # The policies take a moment to know a new pod.
    entrance = (address_of(running, "timing-manager"), int(Port.CREDIT_DROP))
    deadline = time.monotonic() + LET_IN_S
    while "open" not in intruder.connect([entrance]).values():
        assert time.monotonic() < deadline, "not even a worker's labels open a way"
    return intruder


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


def test_a_worker_has_no_way_to_where_workers_have_no_business(
    running: Running, impostor: Intruder
) -> None:
    records = (address_of(running, "records-manager"), int(Port.RECORDS))
    credits = (address_of(running, "timing-manager"), int(Port.CREDIT_DROP))
    assert list(impostor.connect([records, credits]).values()) == ["TimeoutError", "open"]


@pytest.mark.parametrize(
    ("component", "port", "kind"),
    [("system-controller", Port.EVENTS_OUT, "SUB"), ("timing-manager", Port.CREDIT_DROP, "DEALER")],
    ids=["events", "credits"],
)
def test_a_client_without_the_stack_s_keys_gets_nowhere(
    cluster: Cluster, running: Running, impostor: Intruder, component: str, port: Port, kind: str
) -> None:
    address = f"tcp://{address_of(running, component)}:{int(port)}"
    keys = keys_of(cluster, running)
    server, theirs = keys["server.public"], (keys["client.public"], keys["client.secret"])
    public, secret = (key.decode() for key in zmq.curve_keypair())
    other_server = zmq.curve_keypair()[0].decode()

    entitled = impostor.shake_hands(address, kind, server=server, pair=theirs)
    assert entitled[-1] == "HANDSHAKE_SUCCEEDED"
    for events in (
        impostor.shake_hands(address, kind),
        impostor.shake_hands(address, kind, server=other_server, pair=(public, secret)),
        impostor.shake_hands(address, kind, server=server, pair=(public, secret)),
    ):
        assert "CONNECTED" in events
        assert "HANDSHAKE_SUCCEEDED" not in events


def address_of(running: Running, component: str) -> str:
    """Of the component's one pod."""
    (pod,) = running.stack.pods(running.namespace, component)
    return str(pod["status"]["podIP"])


def keys_of(cluster: Cluster, running: Running) -> dict[str, str]:
    """The stack's own keys."""
    label = ("-l", f"aiperf.dev/stack={running.stack.name}")
    (secret,) = (
        found
        for found in cluster.objects("secrets", "-n", running.namespace, *label)
        if found["metadata"]["name"].startswith("keys-")
    )
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
