"""Serves a run's metrics as Prometheus text while the command follows the run, on this machine or
on a cluster.

The results API of a stack has the same page, behind its token. This one is for a Prometheus that
cannot reach the pods, and for local runs, which have no HTTP API.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from aiperf_svc.adapters.results_api.prometheus_text import CONTENT_TYPE, render_metrics
from aiperf_svc.adapters.results_api.status import Status

PATH = "/metrics"
REQUEST_S = 5.0
"""Longest time for a request to arrive."""


class MetricsPage:
    """The page of one run, from its first status to its end."""

    def __init__(self, host: str, port: int, *, note: Callable[[str], None]) -> None:
        self._host, self._port = host, port
        self._note = note
        self._status: Status | None = None
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port)
        except (OSError, UnicodeError) as error:
            where = f"{self._host}:{self._port}"
            self._note(f"no page of metrics: cannot listen on {where}: {_reason(error)}")
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def port(self) -> int:
        """The port on which it listens; 0 if it does not."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server is not None else 0

    def show(self, status: Status) -> None:
        """Take the newest status."""
        self._status = status

    async def finish(self, summary: dict[str, Any] | None) -> None:
        """Do nothing: the page ends with the run, and its files have the results."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._response(head))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # Who has asked has left, or does not speak HTTP.
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._serving.discard(task)

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != PATH.encode() or method != b"GET":
            return _response("404 Not Found", b"expected GET /metrics\n")
        if self._status is None:
            return _response("503 Service Unavailable", b"the run has not started yet\n")
        return _response("200 OK", render_metrics(self._status).encode())


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "that is no name of a host"
    # The event loop's own text repeats the address; numbers of name look-ups are negative.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def _response(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
