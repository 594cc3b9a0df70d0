"""The HTTP API of the records manager: the status of the run, its results, and a way to stop it.

GET  /healthz  /readyz                         no token
GET  /metrics                                  Prometheus text
GET  /v1/status?after=N&timeout=S              at once, or when the number is not N any more
GET  /v1/summary                               what profile_export_aiperf.json holds; 409 before
GET  /v1/results                               name, size and SHA-256 of every file; 409 before
GET  /v1/results/{name}                        one file: ranges, ETag, gzip
POST /v1/cancel      {"reason": "..."}         stop, keep and report what was measured
GET  /v1/clock                                 {"wall_ns": ...}: the time here
POST /v1/start       {"at_wall_ns": ...}       start the load of a held run at this time here, at
                                               most a minute away; 409 unless it waits for a start.
                                               "trial": N for a trial of an experiment; 1 if absent
POST /v1/collected                             the results are fetched, nobody needs this any more;
                                               409 before they are final

Everything below /v1 needs the stack's token, as `Authorization: Bearer` or
`X-Aiperf-Token` (proxies of a cluster take the first for themselves). /metrics needs it too, or a
token of its own that opens nothing else; with `deployment.monitoring: annotations` it needs none.
Connections that have not shown a token are few and short: `guarded_connections`.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Set
from time import time_ns
from typing import Any

import msgspec
from aiohttp import web

from aiperf_svc.adapters.exports.manifest import Manifest
from aiperf_svc.adapters.exports.result_files import encode
from aiperf_svc.adapters.results_api.file_responses import send_file
from aiperf_svc.adapters.results_api.guarded_connections import (
    ConnectionLimits,
    GuardedConnection,
    GuardedConnections,
)
from aiperf_svc.adapters.results_api.prometheus_text import CONTENT_TYPE, render_metrics
from aiperf_svc.adapters.results_api.provider import ResultsProvider, refused_start
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

LONGEST_POLL_S = 60.0
METRICS = "/metrics"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
BACKLOG = 1_024
"""Most connections that wait to be accepted."""
LARGEST_BODY = 16 * 1024
"""Largest body of a request; only a cancel sends one."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ResultsServer:
    """A running API."""

    def __init__(self, runner: web.AppRunner, listener: asyncio.Server) -> None:
        self._runner = runner
        self._listener = listener

    @property
    def port(self) -> int:
        """Port on which it listens."""
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end the open responses."""
        self._listener.close()
        await self._runner.cleanup()


async def serve(
    provider: ResultsProvider,
    *,
    token: str,
    host: str,
    port: int,
    metrics_token: str = "",
    is_metrics_open: bool = False,
    limits: ConnectionLimits | None = None,
) -> ResultsServer:
    """Start the API on `host:port`. Whoever has `metrics_token` may read the page of metrics, and
    everybody may if it is open. Raises EnvironmentProblem if it cannot listen there."""
    check = _token_check(
        token,
        metrics_token=metrics_token,
        open_paths=OPEN_PATHS | ({METRICS} if is_metrics_open else set()),
    )
    runner = web.AppRunner(
        _make_app(provider, check), access_log=None, shutdown_timeout=1.0, handle_signals=False
    )
    await runner.setup()
    assert runner.server is not None
    guard = GuardedConnections(runner.server, limits or ConnectionLimits())
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(guard, host, port, backlog=BACKLOG)
    except OSError as error:
        await runner.cleanup()
        raise EnvironmentProblem(f"results API: cannot listen on {host}:{port}: {error}") from error
    return ResultsServer(runner, listener)


def _make_app(provider: ResultsProvider, check: Any) -> web.Application:
    routes = _Routes(provider)
    app = web.Application(middlewares=[check], client_max_size=LARGEST_BODY)
    app.router.add_get("/healthz", routes.healthy)
    app.router.add_get("/readyz", routes.ready)
    app.router.add_get(METRICS, routes.metrics)
    app.router.add_get("/v1/status", routes.status)
    app.router.add_get("/v1/summary", routes.summary)
    app.router.add_get("/v1/results", routes.results)
    app.router.add_get("/v1/results/{name:.+}", routes.result)
    app.router.add_post("/v1/cancel", routes.cancel)
    app.router.add_get("/v1/clock", routes.clock)
    app.router.add_post("/v1/start", routes.start)
    app.router.add_post("/v1/collected", routes.collected)
    return app


def _token_check(token: str, *, metrics_token: str, open_paths: Set[str]) -> Any:
    expected, for_metrics = token.encode(), metrics_token.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in open_paths:
            given = request.headers.get("X-Aiperf-Token", "")
            scheme, _, value = request.headers.get("Authorization", "").partition(" ")
            if not given and scheme.lower() == "bearer":
                given = value.strip()
            said = given.encode("utf-8", "surrogateescape")
            accepted = (expected, for_metrics) if request.path == METRICS else (expected,)
            if not any(_is_same(said, each) for each in accepted):
                raise web.HTTPUnauthorized(
                    text="token missing or wrong\n", headers={"WWW-Authenticate": "Bearer"}
                )
            if isinstance(request.protocol, GuardedConnection):
                request.protocol.trust()
        return await handler(request)

    return check


def _is_same(given: bytes, token: bytes) -> bool:
    """Compare in constant time. An empty token would let everybody in."""
    return bool(token) and hmac.compare_digest(given, token)


class _Routes:
    def __init__(self, provider: ResultsProvider) -> None:
        self._provider = provider

    async def healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(self, _request: web.Request) -> web.Response:
        return web.Response(text=f"{self._provider.status().state}\n")

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=render_metrics(self._provider.status()).encode(),
            headers={"Content-Type": CONTENT_TYPE},
        )

    async def status(self, request: web.Request) -> web.Response:
        after = _number(request, "after", int)
        timeout_s = _number(request, "timeout", float)
        if after is not None:
            wait_s = min(20.0 if timeout_s is None else timeout_s, LONGEST_POLL_S)
            await self._provider.wait_change(int(after), wait_s)
        return _json(self._provider.status())

    async def summary(self, _request: web.Request) -> web.Response:
        results = self._provider.results()
        if results is None:
            raise web.HTTPConflict(text="the summary is not computed yet\n")
        return web.Response(body=encode(results), content_type="application/json")

    async def results(self, _request: web.Request) -> web.Response:
        return _json(await self._manifest())

    async def result(self, request: web.Request) -> web.StreamResponse:
        manifest = await self._manifest()
        name = request.match_info["name"]
        # Only what the manifest lists is served, so no name leads out of the folder.
        entry = next((each for each in manifest.files if each.name == name), None)
        if entry is None:
            raise web.HTTPNotFound(text=f"no result is called {name!r}; see /v1/results\n")
        path = self._provider.folder() / name
        return await send_file(request, path, size=entry.size, sha256=entry.sha256)

    async def cancel(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            asked = msgspec.json.decode(body, type=_Cancel) if body else _Cancel()
        except msgspec.DecodeError as error:
            raise web.HTTPBadRequest(text=f'expected {{"reason": "..."}}: {error}\n') from error
        self._provider.cancel(one_line(asked.reason))
        return web.Response(status=202, text="stopping\n")

    async def clock(self, _request: web.Request) -> web.Response:
        return _json({"wall_ns": time_ns()})

    async def start(self, request: web.Request) -> web.Response:
        try:
            given = msgspec.json.decode(await request.read(), type=_Start)
        except msgspec.DecodeError as error:
            raise web.HTTPBadRequest(text=f'expected {{"at_wall_ns": N}}: {error}\n') from error
        if problem := refused_start(self._provider, given.at_wall_ns, given.trial):
            raise web.HTTPConflict(text=f"{problem}\n")
        self._provider.start(given.at_wall_ns)
        return web.Response(status=202, text="starting\n")

    async def collected(self, _request: web.Request) -> web.Response:
        if not self._provider.status().is_settled:
            raise web.HTTPConflict(text="the results are not final yet\n")
        # The response must be on its way before the process may end.
        asyncio.get_running_loop().call_later(0.05, self._provider.collected)
        return web.Response(status=202, text="ending\n")

    async def _manifest(self) -> Manifest:
        manifest = await asyncio.to_thread(self._provider.manifest)
        if manifest is None:
            raise web.HTTPConflict(text="the results are not written yet\n")
        return manifest


class _Start(msgspec.Struct):
    at_wall_ns: int
    trial: int = 1


class _Cancel(msgspec.Struct):
    reason: str = "asked for through the API"


def _number(request: web.Request, name: str, kind: type[int] | type[float]) -> float | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**53:
        raise web.HTTPBadRequest(text=f"{name}={text!r}: expected a number of zero or more\n")
    return value


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
