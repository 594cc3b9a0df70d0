"""Requests through a proxy to the target."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.adapters.inference.side_requests import ask, call_hook
from aiperf_svc.config.hooks import Hook
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Flag
from benchmarks.stream_server import stream_server
from tests.support.client_bench import CHUNKED, LENGTH, WAIT_S, bench, responses
from tests.support.http2_server import Peer, http2
from tests.support.small_configs import small_config

Certificate = tuple[Path, Path]
OPENED = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n"


class Proxy:
    """Records the head of each connection's first request and forwards everything."""

    def __init__(self, reply: bytes) -> None:
        self.heads: list[bytes] = []
        self.url = ""
        self._reply = reply
        """The response to CONNECT."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        method, target, _ = head.split(b"\r\n")[0].split(b" ")
        if method == b"CONNECT":
            # In two segments, neither of which is a complete head.
            writer.write(self._reply[:20])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(self._reply[20:])
            if not self._reply.startswith(b"HTTP/1.1 200"):
                return
            port, first = int(target.rpartition(b":")[2]), b""
        else:
            port, first = int(target.split(b"/")[2].rpartition(b":")[2]), head
        there = await asyncio.open_connection("127.0.0.1", port)
        there[1].write(first)
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass(reader, there[1]))
            group.create_task(_pass(there[0], writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionError:
        pass  # either side may disconnect at any time
    finally:
        writer.close()


@asynccontextmanager
async def proxy(reply: bytes = OPENED) -> AsyncIterator[Proxy]:
    found = Proxy(reply)
    async with stream_server(found.serve) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PROXY_USER", "me:secret")
    return {"proxy_auth_env": "PROXY_USER"}


async def test_http_target_gets_absolute_form_through_proxy(user: dict[str, Any]) -> None:
    async with proxy() as there, bench(responses(CHUNKED), proxy=there.url, **user) as b:
        rows = [await b.one(index=1), await b.one(index=2)]
        assert b.sent.bodies == CHUNKED * 2
        assert [row["outcome"] for row in rows] == [Outcome.COMPLETED] * 2
        assert rows[1]["flags"] & Flag.REUSED
        (head,) = there.heads
    lines = head.split(b"\r\n")
    host = next(line for line in lines if line.startswith(b"Host: ")).removeprefix(b"Host: ")
    assert lines[0] == b"POST http://" + host + b"/v1/chat/completions HTTP/1.1"
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0" in lines


async def test_https_target_is_reached_through_a_tunnel(
    server_side: ssl.SSLContext, trust: dict[str, Any], user: dict[str, Any]
) -> None:
    async with (
        proxy() as there,
        bench(responses(LENGTH), server_side=server_side, proxy=there.url, **user, **trust) as b,
    ):
        first, second = await b.one(index=1), await b.one(index=2)
        assert b.sent.bodies == LENGTH * 2
        assert (first["tls_ns"] > 0, second["tls_ns"]) == (True, 0)
        (head,) = there.heads
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"CONNECT 127.0.0.1:")
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0" in lines
    assert b"secret" not in head, "the target's request is only inside the tunnel"


async def test_http2_uses_a_tunnel(server_side: ssl.SSLContext, trust: dict[str, Any]) -> None:
    async def respond(peer: Peer) -> None:
        await peer.head()
        await peer.data(b"hello", end=True)

    server_side.set_alpn_protocols(["h2"])
    async with (
        proxy() as there,
        bench(http2(respond), server_side=server_side, http2=True, proxy=there.url, **trust) as b,
    ):
        rows = [await b.one(index=1), await b.one(index=2)]
        assert [row["outcome"] for row in rows] == [Outcome.COMPLETED] * 2
        assert len(there.heads) == 1


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            b"the proxy refuses CONNECT with status 407",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"the proxy's response to CONNECT is not HTTP"),
    ],
)
async def test_refused_tunnel_is_a_connect_error(
    server_side: ssl.SSLContext, trust: dict[str, Any], reply: bytes, text: bytes
) -> None:
    async with (
        proxy(reply) as there,
        bench(responses(LENGTH), server_side=server_side, proxy=there.url, **trust) as b,
    ):
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.CONNECT)
        assert text in b.sent.bodies
        assert b.client.requests_sent == 0


@pytest.mark.parametrize("is_tls", [False, True])
async def test_side_requests_use_the_proxy(
    server_side: ssl.SSLContext, trust: dict[str, Any], is_tls: bool
) -> None:
    keys: dict[str, Any] = trust if is_tls else {}
    side = server_side if is_tls else None
    async with (
        proxy() as there,
        bench(responses(LENGTH), server_side=side, proxy=there.url, **keys) as b,
    ):
        before, after = b.target.request(b"{}")
        request = before + b"id" + after
        assert await ask(b.target, request, timeout_s=WAIT_S) == (200, b"hello")
        port = next(line for line in there.heads[0].split(b"\r\n") if line.startswith(b"Host: "))
        url = f"http{'s' if is_tls else ''}://{port.removeprefix(b'Host: ').decode()}"
        config = small_config(f"{url}/v1", endpoint={"proxy": there.url, **keys})
        hook = Hook(before="load", path="/reset_prefix_cache")
        assert await call_hook(hook, url, config, "id") == ""
        line = there.heads[1].split(b" HTTP/1.1")[0].decode()
        tunnel = f"CONNECT {url.removeprefix('https://')}"
        assert line == (tunnel if is_tls else f"POST {url}/reset_prefix_cache")


def test_unset_variable_of_the_proxy_user_is_reported() -> None:
    endpoint = {"proxy": "http://127.0.0.1:1", "proxy_auth_env": "NOT_SET"}
    config = small_config(endpoint=endpoint)
    with pytest.raises(ConfigError, match="environment variable NOT_SET is not set"):
        resolve_target(config)
