"""Serves a run's metrics as Prometheus text while the command follows the run, on this machine or
on a cluster.

The results API of a stack has the same page, protected by its token. This page is for a Prometheus
that cannot reach the pods, and for local runs, which have no HTTP API.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web

from aiperf_svc.adapters.results_api.guarded_connections import ConnectionLimits, GuardedConnections
from aiperf_svc.adapters.results_api.prometheus_text import CONTENT_TYPE, render_metrics
from aiperf_svc.adapters.results_api.status import Status

PATH = "/metrics"
CONNECTION_S = 5.0
"""Timeout of a connection, which carries one request."""


class MetricsPage:
    """The page of one run, from its first status to its end."""

    def __init__(self, host: str, port: int, *, note: Callable[[str], None]) -> None:
        self._host, self._port = host, port
        self._note = note
        self._status: Status | None = None
        self._listener: asyncio.Server | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(PATH, self._respond)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handle_signals=False)
        await runner.setup()
        self._open.push_async_callback(runner.cleanup)
        assert runner.server is not None
        connections = GuardedConnections(
            runner.server, ConnectionLimits(unauthenticated_s=CONNECTION_S)
        )
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(connections, self._host, self._port)
        except (OSError, UnicodeError) as error:
            where = f"{self._host}:{self._port}"
            self._note(f"no page of metrics: cannot listen on {where}: {_reason(error)}")
        else:
            self._open.callback(self._listener.close)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._open.aclose()

    @property
    def port(self) -> int:
        """The port of the page; 0 if it does not listen."""
        return int(self._listener.sockets[0].getsockname()[1]) if self._listener else 0

    def show(self, status: Status) -> None:
        self._status = status

    async def finish(self, results: object) -> None:
        """Do nothing: the page ends with the run, and the run's files have the results."""

    async def _respond(self, _request: web.Request) -> web.Response:
        if self._status is None:
            response = web.Response(status=503, text="the run has not started yet\n")
        else:
            text = render_metrics(self._status).encode()
            response = web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
        response.force_close()
        return response


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "the name of the host is invalid"
    # The event loop's own text repeats the address; DNS lookup errors have negative numbers.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)
