"""The program of the pods that check a network, run on the loopback."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.adapters.cluster.preflight import network_check, network_program
from tests.support.fake_cluster import FakeCluster
from tests.support.ports import free_port
from tests.support.running_command import wait_for
from tests.support.threaded_server import in_thread

PAGE = """# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="a"} 5
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="a"} 0
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="b",err_msg="x y"} 79
"""


@pytest.fixture
def page_url() -> Iterator[str]:
    """Serve DCGM's page at /metrics and a page without GPUs elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode() if self.path == "/metrics" else b"up 1\n")

        def log_message(self, *_arguments: object) -> None:
            pass

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


def connect(allowed: int, forbidden: int, *urls: str) -> dict[str, object]:
    """Run the program from its text, as the pod does."""
    program = Path(network_program.__file__).read_text()
    arguments = ("connect", "127.0.0.1", str(allowed), str(forbidden), *urls)
    out = subprocess.check_output((sys.executable, "-c", program, *arguments), text=True)
    found: dict[str, object] = json.loads(out)
    return found


def test_refused_port_is_reported_with_its_error(page_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = allowed.getsockname()[1], closed.getsockname()[1]
        found = connect(*ports, f"{page_url}/metrics", f"{page_url}/other", "http://127.0.0.1:1/")
    assert (found["allowed"], found["forbidden"]) == ("", "[Errno 111] Connection refused")
    pages = found["pages"]
    assert isinstance(pages, dict)
    assert pages[f"{page_url}/metrics"] == {"gpus": 2, "xids": [["1", 79]]}
    assert pages[f"{page_url}/other"] == {"failure": "its page has no GPU"}
    assert "refused" in pages["http://127.0.0.1:1/"]["failure"]


def test_two_open_ports_are_tried_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_program, "DIFFER_S", 0.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        ports = one.getsockname()[1], other.getsockname()[1]
        found = network_program.connect("127.0.0.1", *ports)
    assert found == {"allowed": "", "forbidden": ""}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_pod_listens_on_ipv4_and_ipv6(host: str) -> None:
    port, program = free_port(), Path(network_program.__file__).read_text()
    with subprocess.Popen((sys.executable, "-c", program, "listen", str(port))) as pod:
        try:
            wait_for(lambda: not network_program.attempt(host, port))
        finally:
            pod.kill()


def test_policy_allows_one_of_two_ports() -> None:
    objects = network_check.plan_objects("abc", image="i", version="1")
    ((_, policy),) = [each for each in objects.manifests() if each[1]["kind"] == "NetworkPolicy"]
    listener = objects.listener("p")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= (
        listener["metadata"]["labels"].items()
    )
    command = listener["spec"]["containers"][0]["command"]
    allowed = policy["spec"]["ingress"][0]["ports"][0]["port"]
    # The allowed port opens last. Once it is open, the other port is open too.
    assert command[-2:] == [str(network_check.FORBIDDEN_PORT), str(allowed)]


class FailingApi(FakeCluster):
    """An API server that creates the namespace but responds with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.deleted = list[str](), list[str]()

    async def post(self, path: str, body: dict[str, Any], **params: str) -> dict[str, Any]:
        if path == network_check.NAMESPACES:
            self.made.append(f"{path}/{body['metadata']['name']}")
            raise Refused("etcdserver: request timed out", status=500, reason="")
        return await super().post(path, body, **params)

    async def delete(self, path: str, **options: Any) -> None:
        self.deleted.append(path)


async def test_namespace_of_a_failed_creation_is_removed() -> None:
    cluster = FailingApi()
    probed = await network_check.probe_network(cluster.typed, (), image="i", version="1", say=print)
    assert "cannot create its namespace" in probed.result.not_tried
    assert cluster.deleted == cluster.made != []
