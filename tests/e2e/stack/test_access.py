"""Access to a running stack, and the permissions of its pods."""

import base64
import functools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import zmq

from aiperf_svc.plan.identity import COMPONENT_LABEL, STACK_LABEL
from aiperf_svc.plan.service_pods import CURVE_DIR
from aiperf_svc.protocol.ports import BOUND_BY, CONNECTED_BY, Port
from aiperf_svc.protocol.services import Service
from tests.support.stack.intruder import Intruder, Keys, intrude
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config, Stack, run_all, shrink

pytestmark = [pytest.mark.cluster, pytest.mark.gate]

LET_IN_S = 30.0
PEER = {
    Port.RECORDS: "PUSH",
    Port.CREDIT_DROP: "DEALER",
    Port.CREDIT_RETURN: "PUSH",
    Port.DATASET_FRONT: "REQ",
    Port.DATASET_BACK: "REP",
    Port.EVENTS_IN: "PUB",
    Port.EVENTS_OUT: "SUB",
    Port.REPORTS_IN: "PUB",
    Port.RAW_FRONT: "DEALER",
    Port.RAW_BACK: "DEALER",
    Port.RAW_DIRECT: "DEALER",
}
"""Kind of the sockets that connect to each port between services."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A stack in the middle of a long measurement."""

    stack: Stack
    outputs: dict[str, Any]
    pods: list[dict[str, Any]]

    @property
    def namespace(self) -> str:
        return str(self.outputs["namespace"])


def run_long(benchmark: Config) -> None:
    benchmark["load"] |= {"duration": "10m", "grace_period": "1s"}
    # Like large stacks, so that every port of the map is bound.
    benchmark["deployment"] |= {"raw_route": "direct", "ttl": "30m"}


@pytest.fixture(scope="module")
def running(cluster: Cluster, make_shared_stack: Callable[[], Stack]) -> Iterator[Running]:
    stack = make_shared_stack()
    stack.change(shrink)
    stack.change(run_long)
    # `run` narrows the network policy of the deadline pod by itself.
    (service,) = cluster.objects(
        "services", "-n", "default", "--field-selector=metadata.name=kubernetes"
    )
    addresses = [service["spec"]["clusterIP"], *(host for host, _ in api_servers(cluster))]
    ways = [f"{address}/32" for address in dict.fromkeys(addresses)]
    stack.change(lambda benchmark: benchmark["deployment"].update(api_server_cidrs=ways))
    stack.up()
    outputs = stack.outputs()
    yield Running(stack=stack, outputs=outputs, pods=stack.pods(outputs["namespace"]))
    stack.destroy()


@pytest.fixture(scope="module")
def stranger(cluster: Cluster, image: str, running: Running) -> Intruder:
    """A pod in the stack's namespace without its label."""
    return intrude(cluster, running.namespace, "stranger", image=image, labels={"app": "other"})


@pytest.fixture(scope="module")
def impostors(cluster: Cluster, image: str, running: Running) -> dict[str, Intruder]:
    """Pods by component that have this component's labels, so network policies admit them."""
    found: dict[str, Intruder] = {}

    def put(component: str) -> None:
        labels = {STACK_LABEL: running.stack.name, COMPONENT_LABEL: component}
        name = f"impostor-{component}"
        intruder = intrude(cluster, running.namespace, name, image=image, labels=labels)
        entrances = [address_of(running, port) for port in Port if entitled(port) == component]
        # Network policies apply to a new pod after a moment.
        deadline = time.monotonic() + LET_IN_S
        while set(intruder.connect(entrances).values()) != {"open"}:
            assert time.monotonic() < deadline, f"policies do not admit the labels of {component}"
        found[component] = intruder

    run_all(*(functools.partial(put, component) for component in {entitled(p) for p in PEER}))
    return found


def test_pods_have_no_root_token_or_api_access(cluster: Cluster, running: Running) -> None:
    assert len(running.pods) == running.outputs["pods"]
    # Any pod can reach it unless a policy prevents it, as `stranger` shows.
    others = json.dumps([api_servers(cluster), address_of(running, Port.RESULTS_API)])
    program = ("python", "-c", LOOK_AROUND, others)
    seen: dict[str, dict[str, Any]] = {}

    def look_around(name: str) -> None:
        where = ("-n", running.namespace, name, "--")
        seen[name] = json.loads(cluster.kubectl("exec", *where, *program))

    names = [pod["metadata"]["name"] for pod in running.pods]
    run_all(*(functools.partial(look_around, name) for name in names))
    for pod in running.pods:
        name, spec = pod["metadata"]["name"], pod["spec"]
        own = seen[name]
        assert own["uid"] > 0, name
        assert own["gid"] > 0, name
        assert own["capabilities"] == 0, name
        assert own["root"] == "Read-only file system", name
        is_deadline = pod["metadata"]["labels"][COMPONENT_LABEL] == "deadline"
        assert own["token"] == is_deadline, name
        assert set(own["api servers"]) == {"open" if is_deadline else "TimeoutError"}, name
        assert len(own["api servers"]) > 1
        assert not is_deadline or own["results"] == "TimeoutError"
        assert not spec.get("hostNetwork"), name
    (made,) = cluster.objects("namespaces", "-l", f"aiperf.dev/stack={running.stack.name}")
    assert made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def api_servers(cluster: Cluster) -> list[tuple[str, int]]:
    """Return the API servers' own addresses. NetworkPolicies do not see the Service's address."""
    label = ("-l", "kubernetes.io/service-name=kubernetes")
    return [
        (address, port["port"])
        for slice in cluster.objects("endpointslices", "-n", "default", *label)
        for endpoint in slice["endpoints"]
        for address in endpoint["addresses"]
        for port in slice["ports"]
    ]


LOOK_AROUND = """
import json, os, pathlib, socket, sys
def attempt(host, port):
    try:
        socket.create_connection((host, port), timeout=3).close()
        return "open"
    except OSError as error:
        return type(error).__name__
service = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
others, results = json.loads(sys.argv[1])
servers = [attempt(*service), *(attempt(*server) for server in others)]
try:
    pathlib.Path("/written").write_text("")
    root = "writable"
except OSError as error:
    root = error.strerror
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "root": root,
    "capabilities": int(status["CapBnd"], 16), "api servers": servers,
    "results": attempt(*results),
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
}))
"""


def test_results_api_refuses_requests_without_the_token(running: Running) -> None:
    with running.stack.port_forward(running.outputs) as url:
        assert response(url, "/healthz") == 200
        for path in ("/v1/status", "/v1/results", "/v1/summary", "/metrics"):
            assert response(url, path) == 401
            assert response(url, path, token="wrong") == 401
        assert response(url, "/v1/status", token=running.outputs["resultsToken"]) == 200


def response(url: str, path: str, *, token: str = "") -> int:
    """Return the status of a GET request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_foreign_pod_reaches_only_the_results_port(running: Running, stranger: Intruder) -> None:
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


def test_worker_reaches_only_its_own_peers(
    running: Running, impostors: dict[str, Intruder]
) -> None:
    records, credits = (address_of(running, port) for port in (Port.RECORDS, Port.CREDIT_DROP))
    found = impostors["worker"].connect([records, credits])
    assert list(found.values()) == ["TimeoutError", "open"]


def test_port_admits_only_keys_of_its_peers(
    cluster: Cluster, running: Running, impostors: dict[str, Intruder]
) -> None:
    listening = {
        port["containerPort"]
        for pod in running.pods
        if pod["metadata"]["labels"][COMPONENT_LABEL] != "target"
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    }
    assert listening == {*map(int, PEER), int(Port.RESULTS_API)} == set(map(int, Port))
    stack = keys_of(cluster, running)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    other_server = zmq.curve_keypair()[0].decode()
    for component, impostor in impostors.items():
        tried: list[tuple[Port, str, Keys]] = []
        for port in PEER:
            if entitled(port) == component:
                server = stack[f"{BOUND_BY[port]}.public"]
                tried += [
                    (port, "none", Keys()),
                    (port, "another server's", Keys(other_server, public, secret)),
                    (port, "a pair of its own", Keys(server, public, secret)),
                ]
                tried += [
                    (port, who, Keys(server, stack[f"{who}.public"], stack[f"{who}.secret"]))
                    for who in Service
                ]
        clients = [(url_of(running, port), PEER[port], keys) for port, _, keys in tried]
        for (port, whose, _), events in zip(tried, impostor.shake_hands(clients), strict=True):
            assert "CONNECTED" in events, (port, whose)
            may = whose in CONNECTED_BY[port]
            assert ("HANDSHAKE_SUCCEEDED" in events) == may, (port, whose, events)


def test_pod_has_only_its_services_secret_key(cluster: Cluster, running: Running) -> None:
    program = f"import json, os; print(json.dumps(os.listdir({CURVE_DIR!r})))"
    seen: dict[str, set[str]] = {}
    for pod in running.pods:
        component = pod["metadata"]["labels"][COMPONENT_LABEL]
        if component in set(Service):
            where = ("-n", running.namespace, pod["metadata"]["name"], "--")
            found = json.loads(cluster.kubectl("exec", *where, "python", "-c", program))
            seen[component] = {name for name in found if name.endswith(".secret")}
    assert seen == {service.value: {f"{service}.secret"} for service in Service}


def entitled(port: Port) -> str:
    """Return the component whose pods the policies admit to a port between services, if any."""
    clients = CONNECTED_BY.get(port, frozenset()) - {BOUND_BY[port], Service.SYSTEM_CONTROLLER}
    return (Service.WORKER if Service.WORKER in clients else min(clients)) if clients else ""


def address_of(running: Running, port: Port) -> tuple[str, int]:
    """Return the address of the only pod that binds a port."""
    (address,) = (
        pod["status"]["podIP"]
        for pod in running.pods
        if pod["metadata"]["labels"][COMPONENT_LABEL] == BOUND_BY[port]
    )
    return str(address), int(port)


def url_of(running: Running, port: Port) -> str:
    """Return the same address as a ZeroMQ URL."""
    host, number = address_of(running, port)
    return f"tcp://{host}:{number}"


def keys_of(cluster: Cluster, running: Running) -> dict[str, str]:
    """Return the keys of all services by file name."""
    label = ("-l", f"aiperf.dev/stack={running.stack.name}")
    (secret,) = (
        found
        for found in cluster.objects("secrets", "-n", running.namespace, *label)
        if found["metadata"]["name"].startswith("keys-")
    )
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
