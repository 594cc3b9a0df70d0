"""A router with consistent hashing in its own process. `python -m tests.support.hash_router URL
URL` prints its URL. It takes the same keys as the vLLM router, in the same order."""

import asyncio
import hashlib
import json
import subprocess
import sys
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp import web

HEADERS = (
    "X-Session-ID",
    "X-User-ID",
    "X-Tenant-ID",
    "X-Request-ID",
    "X-Correlation-ID",
    "X-Trace-ID",
)
MEMBERS = ("user", "session_id", "user_id")
POINTS = 100
"""Points of each server on the hash ring."""


def key_of(headers: Mapping[str, str], body: bytes) -> str:
    """Return the key by which a request is routed."""
    for name in HEADERS:
        if headers.get(name):
            return headers[name]
    data: dict[str, Any] = json.loads(body)
    session = data.get("session_params", {}).get("session_id")
    found = (value for value in (session, *map(data.get, MEMBERS)) if value)
    return str(next(found, body))


class Ring:
    """Maps the hash of a key to a server."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._points = sorted((_hash(f"{url}#{n}"), url) for url in urls for n in range(POINTS))

    def find(self, key: str) -> str:
        """Return the server for a key."""
        return self._points[bisect(self._points, (_hash(key), "")) % len(self._points)][1]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


async def route(request: web.Request) -> web.StreamResponse:
    """Forward a request to its server and stream the response back."""
    body = await request.read()
    url = request.app[RING].find(key_of(request.headers, body)) + request.path
    headers = {
        name: value
        for name, value in request.headers.items()
        if name.lower() not in ("host", "content-length")
    }
    async with request.app[CLIENT].post(url, data=body, headers=headers) as answer:
        response = web.StreamResponse(
            status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
        )
        await response.prepare(request)
        async for data in answer.content.iter_any():
            await response.write(data)
        await response.write_eof()
    return response


RING = web.AppKey("ring", Ring)
CLIENT = web.AppKey("client", aiohttp.ClientSession)


async def serve(urls: Sequence[str]) -> None:
    """Route requests until standard input ends."""
    app = web.Application(client_max_size=2**26)
    app[RING] = Ring(urls)
    app.router.add_post("/{path:.*}", route)
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        app[CLIENT] = client
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()


@contextmanager
def routing(*urls: str) -> Iterator[str]:
    """Run a router in front of these servers and yield its URL."""
    command = [sys.executable, "-m", __name__, *urls]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as router:
        assert router.stdin is not None
        assert router.stdout is not None
        try:
            yield router.stdout.readline().strip()
        finally:
            router.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
