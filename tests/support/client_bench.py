"""An inference client and a server that plays a scripted response, byte by byte."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

import numpy as np

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.connection import Connection
from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.adapters.inference.resolved_target import GetAddrInfo, Target, resolve_target
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import FRAGMENT_DTYPE, READ_DTYPE, Flag, Rows
from benchmarks.stream_server import Serve, stream_server
from tests.support.small_configs import small_config

WAIT_S = 60.0
MS = 1_000_000
SYSTEM_GETADDRINFO = socket.getaddrinfo

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'd\r\ndata: "one"\n\n\r\n'
    b'd;name=value\r\ndata: "two"\n\n\r\n'
    b"0\r\nTrailer: x\r\n\r\n"
)
PADDED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'00000000000D\r\ndata: "one"\n\n\r\n'
    b'000d;n="v;w"\r\ndata: "two"\n\n\r\n'
    b"0000;last\r\nTrailer: x\r\nOther: y\r\n\r\n"
)
"""The same response with different legal framing."""


@dataclass
class Sent:
    """What the client reported."""

    ends: list[tuple[Outcome, Request]] = field(default_factory=list)
    timers: list[int] = field(default_factory=list)
    fragments: bytes = b""
    reads: bytes = b""
    bodies: bytes = b""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_end(self, request: Request, outcome: int) -> None:
        self.ends.append((Outcome(outcome), request))
        self.changed.set()

    def on_batch(self, fragments: bytes, reads: bytes, bodies: bytes, last_seq: int) -> None:
        self.fragments += fragments
        self.reads += reads
        self.bodies += bodies

    async def wait_for(self, count: int) -> None:
        while len(self.ends) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), WAIT_S)

    @property
    def rows(self) -> Rows:
        return np.frombuffer(self.fragments, dtype=FRAGMENT_DTYPE)

    @property
    def read_rows(self) -> Rows:
        return np.frombuffer(self.reads, dtype=READ_DTYPE)


@dataclass
class Bench:
    """An inference client that runs in the test's event loop."""

    client: InferenceClient
    sent: Sent
    target: Target

    def send(self, *, index: int = 0, body: bytes = b"{}", due: int = 0) -> None:
        self.client.send(self.request(index=index, body=body, due=due))

    def request(
        self, *, index: int = 0, body: bytes = b"{}", due: int = 0, kept: bytearray | None = None
    ) -> Request:
        turn = PreparedTurn(*self.target.request(body), 3, 0)
        flags = int(Flag.LAST_TURN)
        return Request(turn, b"id", 1, index, due or time_ns(), flags, None, kept)

    @property
    def connections(self) -> list[Connection]:
        """Return all connections, including connecting and idle ones."""
        return list(self.client._pool.by_fd.values())

    async def one(self, *, index: int = 0) -> Rows:
        """Send one request, wait for its end, and return the row of its last fragment."""
        before = len(self.sent.ends)
        self.send(index=index)
        await self.sent.wait_for(before + 1)
        self.client.flush()
        return self.sent.rows[-1]


@asynccontextmanager
async def bench(
    script: Serve,
    *,
    server_side: ssl.SSLContext | None = None,
    scheme: str = "",
    hosts: Sequence[str] = ("127.0.0.1",),
    found: Sequence[str] = (),
    **endpoint: object,
) -> AsyncIterator[Bench]:
    """Start a client, and a server that follows the script. The server uses TLS if it gets a
    context. It listens on all `hosts`. DNS lookups of the target return `found`, or the first of
    `hosts`. `endpoint` adds keys to the benchmark's settings."""
    async with AsyncExitStack() as servers:
        port = await servers.enter_async_context(stream_server(script, hosts[0], tls=server_side))
        for host in hosts[1:]:
            await servers.enter_async_context(stream_server(script, host, port, tls=server_side))
        scheme = scheme or ("https" if server_side else "http")
        config = small_config(f"{scheme}://{hosts[0]}:{port}", endpoint=endpoint)
        target = resolve_target(config, getaddrinfo=resolver(*(found or hosts[:1])))
        sent = Sent()
        client = InferenceClient(
            target,
            on_end=sent.on_end,
            on_timer=sent.timers.append,
            on_batch=sent.on_batch,
            poll_every_ns=500_000,
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(client.fd, client.run_ready)
        try:
            yield Bench(client, sent, target)
        finally:
            loop.remove_reader(client.fd)
            client.close()


def resolver(*names: str) -> GetAddrInfo:
    """Return a `getaddrinfo` that finds these addresses for every name."""

    def getaddrinfo(_: str, port: int, **options: int) -> list[Any]:
        return [info for name in names for info in SYSTEM_GETADDRINFO(name, port, **options)]

    return getaddrinfo


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = (
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    return head + await reader.readexactly(next(lengths, 0))


def responses(*parts: bytes) -> Serve:
    """Return a script that answers every request with these writes, each in its own segment."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)

    return script
