"""Servers whose responses and metrics pages a test defines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from aiohttp import web

from benchmarks.stream_server import stream_server
from tests.support.client_bench import read_request

BODY = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)
"""A stream with one token."""

Respond = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


class ScriptedServer:
    """Passes the number of every POST request, from 0, to `respond`. Keeps connections open until
    the next request, for example one for a metrics page."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._numbers = count()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = stream_server(self._serve, host, port)
        self.port = await self._server.__aenter__()

    async def stop(self) -> None:
        """Refuse new connections and reset the open ones, as a killed process does."""
        await self._server.__aexit__(None, None, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await read_request(reader)).startswith(b"POST "):
            await self._respond(next(self._numbers), writer)


SECOND_HOST = "127.0.0.2"
"""Another address of the same servers."""


@asynccontextmanager
async def pages(**texts: Any) -> AsyncIterator[str]:
    """Serve a page at each path. A text may be a function of the number of the read."""
    reads = dict.fromkeys(texts, 0)

    async def respond(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in texts:
            raise web.HTTPNotFound
        reads[name] += 1
        text = texts[name]
        return web.Response(text=text(reads[name]) if callable(text) else text)

    async with served("/{name}", respond, SECOND_HOST) as url:
        yield url


def with_telemetry(base: dict[str, Any], **telemetry: Any) -> dict[str, Any]:
    """Return the benchmark with telemetry from these pages."""
    return base | {"telemetry": telemetry}


@asynccontextmanager
async def served(
    path: str, respond: Callable[[web.Request], Awaitable[web.StreamResponse]], *others: str
) -> AsyncIterator[str]:
    """Serve requests at one path and yield the URL. The path `/{path:.*}` matches all. The server
    also listens on the addresses `others`."""
    app = web.Application()
    app.router.add_route("*", path, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        for host in others:
            await web.TCPSite(runner, host, port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
