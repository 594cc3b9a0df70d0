"""Settings of a mock server: when, to whom and on which addresses it serves."""

import contextlib
import socket
import ssl
from pathlib import Path

import pytest

from aiperf_svc.mock_server import processes
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.bare_client import connected, events_of, request_bytes
from tests.support.running_command import wait_for


def test_a_slow_start_returns_503_and_then_serves() -> None:
    health = b"GET /healthz HTTP/1.1\r\n\r\n"
    with running(MockServerConfig(slow_start="10m")) as server, connected(server) as client:
        assert client.send(health).response()[0] == 503
        assert client.send(request_bytes()).response()[0] == 503
    with running(MockServerConfig(slow_start="200ms")) as server, connected(server) as client:
        wait_for(lambda: client.send(health).response()[0] == 200)
        assert client.send(request_bytes()).response()[0] == 200


def test_freeze_stops_every_process_and_delays_responses() -> None:
    config = MockServerConfig(
        processes=2, truth=True, tokens=100, itl="5ms", freeze_at="150ms", freeze_for="250ms"
    )
    with running(config) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(24)]
        for connection in connections:
            connection.send(request_bytes())
        for connection in connections:
            connection.response()
        truth = server.truth(rows=True)
    rows = truth["rows"]
    assert len({row["process"] for row in rows}) == 2
    for row in rows:
        began_ns, ended_ns = truth["frozen_wall_ns"][row["process"]]
        assert ended_ns - began_ns > 0
        sent = row["chunk_wall_ns"]
        # On a busy machine the freeze may begin late, but its end does not move.
        assert not any(began_ns < at_ns < ended_ns for at_ns in sent)
        # On such a machine, a request may also arrive after the freeze has begun.
        if sent[0] < began_ns < sent[-1]:
            assert sent[-1] - row["arrival_wall_ns"] >= 99 * 5_000_000 + 250_000_000


def test_only_idle_connections_are_closed() -> None:
    # The request arrives before the idle timeout, and its response takes longer than the timeout.
    config = MockServerConfig(keepalive_timeout="2s", tokens=2, itl="2500ms")
    with running(config) as server, connected(server) as busy, connected(server) as idle:
        assert len(events_of(busy.send(request_bytes()).response()[1])) == 4
        assert idle.rest() == b""
        assert busy.rest() == b""


def test_api_key_is_required_by_all_but_health() -> None:
    with running(MockServerConfig(api_key="secret")) as server, connected(server) as client:
        assert client.send(request_bytes()).response()[0] == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert client.send(request_bytes(headers=wrong)).response()[0] == 401
        right = {"authorization": "Bearer secret"}
        assert client.send(request_bytes(headers=right)).response()[0] == 200
        assert client.send(b"GET /healthz HTTP/1.1\r\n\r\n").response()[0] == 200
        truth = server.truth()
    assert (truth["requests"], truth["errors"], truth["completed"]) == (3, 2, 1)


def test_several_hosts_share_each_of_several_ports() -> None:
    config = MockServerConfig(host="127.0.0.1,127.0.0.2", ports=2, processes=2)
    with running(config) as server:
        assert len(set(server.urls)) == 4
        for host in ("127.0.0.1", "127.0.0.2"):
            with connected(server, host=host) as client:
                assert client.send(request_bytes()).response()[0] == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_two_colons_are_all_addresses() -> None:
    with running(MockServerConfig(host="::", processes=2)) as server:
        for host in ("127.0.0.1", "::1"):
            with connected(server, host=host) as client:
                assert client.send(request_bytes()).response()[0] == 200


def test_addresses_are_of_ipv4_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with processes._listener("::", 0, is_first=True) as listener:
        assert listener.family == socket.AF_INET


def test_tls_serves_the_same_responses(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    config = MockServerConfig(tls_cert=str(cert), tls_key=str(key), tokens=3, itl="1ms", truth=True)
    context = ssl.create_default_context(cafile=str(cert))
    with running(config) as server:
        assert server.url.startswith("https://")
        with connected(server) as client:
            client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
            for size in (10, 100_000):
                content = "x" * size
                client.send(request_bytes(messages=[{"role": "user", "content": content}]))
                assert len(events_of(client.response()[1])) == 5
        truth = server.truth(rows=True)
    assert (truth["completed"], len(truth["rows"])) == (2, 2)
    assert truth["unstamped_arrivals"] > 0  # decrypted bytes have no kernel stamps


def test_prompt_over_context_is_refused_like_vllm() -> None:
    path = "/v1/completions"
    with running(MockServerConfig(max_model_len=10)) as server, connected(server) as client:
        short, long = (request_bytes(path, prompt="a " * n, max_tokens=4) for n in (6, 7))
        assert client.send(short).response()[0] == 200
        status, body = client.send(long).response()
    assert status == 400
    assert b"maximum context length is 10 tokens" in body
