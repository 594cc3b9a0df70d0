"""A server with pages of metrics, and what a benchmark says of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

SECOND_HOST = "127.0.0.2"
"""Another address of the same servers."""


@asynccontextmanager
async def pages(**texts: Any) -> AsyncIterator[str]:
    """A server with a page at each path; a text may be a function of the number of the read."""
    reads = dict.fromkeys(texts, 0)

    async def respond(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in texts:
            raise web.HTTPNotFound
        reads[name] += 1
        text = texts[name]
        return web.Response(text=text(reads[name]) if callable(text) else text)

    app = web.Application()
    app.router.add_get("/{name}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        await web.TCPSite(runner, SECOND_HOST, port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def with_telemetry(base: dict[str, Any], **telemetry: Any) -> dict[str, Any]:
    """A benchmark that reads these pages."""
    return base | {"telemetry": telemetry}
