"""Clients without the token hold connections while an authorised client is served."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aiperf_svc.adapters.host.machine import raise_fd_limit
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.guarded_connections import ConnectionLimits
from aiperf_svc.adapters.results_api.server import ResultsServer, serve
from tests.support.fake_results_api import LARGE, TOKEN, Api, Provider

STRANGERS = 1_200
LIMIT = 50
WAIT_S = 60.0
DRIP_S = 0.05
"""Pause between the bytes of an endless header."""

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def say_nothing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    ended = asyncio.ensure_future(reader.read())
    while not ended.done():
        writer.write(b"a")
        await asyncio.wait([ended], timeout=DRIP_S)
    ended.result()


async def drip_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /v1/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{")
    await reader.read()


async def request_health_forever(
    _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    # Responses are never read, so finally neither side can send.
    while True:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        await writer.drain()


@asynccontextmanager
async def strangers(
    port: int, *behaviours: Behaviour, count: int = STRANGERS
) -> AsyncIterator[asyncio.Queue[str]]:
    """Open this many connections that behave in turn like `behaviours`. Yield a queue that gets the
    name of each closed connection's behaviour."""
    cut: asyncio.Queue[str] = asyncio.Queue()

    async def hold(number: int) -> None:
        act = behaviours[number % len(behaviours)]
        # Unread data must not fit into any buffer.
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        try:
            with contextlib.suppress(ConnectionError):
                await act(reader, writer)
            cut.put_nowait(act.__name__)
        finally:
            writer.transport.abort()

    tasks = [asyncio.create_task(hold(number)) for number in range(count)]
    try:
        yield cut
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [r for r in results if isinstance(r, Exception)]


async def are_cut(cut: asyncio.Queue[str], count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        for _ in range(count):
            await cut.get()


@asynccontextmanager
async def serving(folder: Path, limits: ConnectionLimits) -> AsyncIterator[ResultsServer]:
    server = await serve(Provider(folder), token=TOKEN, host="127.0.0.1", port=0, limits=limits)
    try:
        yield server
    finally:
        await server.close()


async def test_authorised_client_is_served_despite_a_thousand_connections(
    api: Api, tmp_path: Path
) -> None:
    raise_fd_limit()  # This process holds both ends of all connections.
    limits = ConnectionLimits(unauthenticated=LIMIT, unauthenticated_s=WAIT_S)
    async with serving(api.provider.path, limits) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with strangers(server.port, say_nothing, drip) as cut:
            # Never above the limit, however many connections arrive.
            await are_cut(cut, STRANGERS - LIMIT)
            async with ResultsClient(url, token=TOKEN) as client:
                assert (await client.status()).state == "profiling"
                await client.download_all(tmp_path / "copy")
            assert (tmp_path / "copy/large.bin").read_bytes() == LARGE
            # Only the authorised client's own connection has displaced another.
            assert cut.qsize() <= 1


@pytest.mark.parametrize(
    "act", [say_nothing, drip, drip_a_body, request_health_forever], ids=lambda f: f.__name__
)
async def test_stranger_is_cut_after_its_time(tmp_path: Path, act: Behaviour) -> None:
    limits = ConnectionLimits(unauthenticated_s=0.3)
    async with serving(tmp_path, limits) as server, strangers(server.port, act, count=8) as cut:
        await are_cut(cut, 8)


async def test_authorised_client_may_take_longer(tmp_path: Path) -> None:
    limits = ConnectionLimits(unauthenticated=1, unauthenticated_s=0.5)
    async with serving(tmp_path, limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        request = f"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Aiperf-Token: {TOKEN}\r\n\r\n"
        try:
            for _ in range(2):
                writer.write(request.encode())
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
                assert head.startswith(b"HTTP/1.1 200")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                # A newer stranger's time runs out before the next request.
                async with strangers(server.port, say_nothing, count=1) as cut:
                    await are_cut(cut, 1)
        finally:
            writer.transport.abort()


async def test_idle_authorised_client_is_closed(tmp_path: Path) -> None:
    limits = ConnectionLimits(idle_s=0.2)
    async with serving(tmp_path, limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        request = f"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Aiperf-Token: {TOKEN}\r\n\r\n"
        writer.write(request.encode())
        read = await asyncio.wait_for(reader.read(), WAIT_S)
        assert read.startswith(b"HTTP/1.1 200")
        writer.transport.abort()
