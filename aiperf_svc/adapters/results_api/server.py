"""The HTTP API of the records manager: the status of the run, its results, and a way to stop it.

GET  /healthz  /readyz                         no token
GET  /metrics                                  Prometheus text
GET  /v1/status?after=N&timeout=S              the status, at once or when its number is no
                                               longer N
GET  /v1/summary                               the content of profile_export_aiperf.json; 409
                                               before it is written
GET  /v1/results                               name, size and SHA-256 of every file; 409 before
                                               they are written
GET  /v1/results/{name}                        one file: ranges, ETag, gzip
POST /v1/cancel      {"reason": "..."}         stop the run and report the results so far
GET  /v1/clock                                 {"wall_ns": ...}: the time of this machine
POST /v1/start       {"at_wall_ns": ...}       start the load of a held run at this time of this
                                               machine, at most a minute ahead; 409 unless the run
                                               waits for its start. "trial": N selects a trial of
                                               an experiment, by default 1
POST /v1/scaling     {"replicas": [...], "changes": [...], ...}
                                               the runner's complete report on the server's
                                               replicas so far
POST /v1/events      {"start_wall_ns": ..., "events": [...]}
                                               the complete report so far on the events of the
                                               load that started at this time
POST /v1/collected                             the results have been fetched, so this process may
                                               end; 409 before they are final

Every path below /v1 requires the stack's token, as `Authorization: Bearer` or `X-Aiperf-Token` (the
proxies of a cluster consume the first header). /metrics accepts this token, or one that is valid
for /metrics only; with `deployment.monitoring: annotations` it requires none.
`guarded_connections` limits the number and duration of connections without a valid token.
"""

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Set
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from aiohttp import web

from aiperf_svc.adapters.exports.manifest import Manifest, written_manifest
from aiperf_svc.adapters.results_api.guarded_connections import (
    ConnectionLimits,
    GuardedConnection,
    GuardedConnections,
)
from aiperf_svc.adapters.results_api.prometheus_text import CONTENT_TYPE, render_metrics
from aiperf_svc.adapters.results_api.provider import Refused, ResultsProvider, respond
from aiperf_svc.adapters.results_api.run_api import (
    BYTES,
    Cancel,
    Collected,
    Events,
    GetClock,
    GetStatus,
    GetSummary,
    Operation,
    Start,
)
from aiperf_svc.core.scaling.report import ScalingReport
from aiperf_svc.domain.errors import EnvironmentProblem

log = logging.getLogger(__name__)

CHUNK = 1024 * 1024
_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII)
"""A single range of bytes. Any other range is answered with the whole file."""
_PACKED = (".parquet", ".gz", ".zst")
"""Suffixes of files that are already compressed."""
_TYPES = {
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".csv": "text/csv",
    ".html": "text/html",
    ".yaml": "application/yaml",
    ".log": "text/plain",
}

MAX_POLL_S = 60.0
METRICS = "/metrics"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
BACKLOG = 1_024
"""Maximum number of connections in the accept queue."""
MAX_BODY_BYTES = 4 * 2**20
"""Maximum size of a request body: a report on some thousand replicas."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ResultsServer:
    def __init__(self, runner: web.AppRunner, listener: asyncio.Server) -> None:
        self._runner = runner
        self._listener = listener

    @property
    def port(self) -> int:
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
    """Start the API on `host:port`. The metrics page requires `metrics_token`, unless it is open.
    Raises EnvironmentProblem if it cannot listen there."""
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
    app = web.Application(middlewares=[check], client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/healthz", routes.healthy)
    app.router.add_get("/readyz", routes.ready)
    app.router.add_get(METRICS, routes.metrics)
    app.router.add_get("/v1/status", routes.status)
    app.router.add_get("/v1/summary", routes.get(GetSummary()))
    app.router.add_get("/v1/clock", routes.get(GetClock()))
    app.router.add_get("/v1/results", routes.results)
    app.router.add_get("/v1/results/{name:.+}", routes.result)
    for kind, expected, reply_text in _POSTS:
        path = f"/v1/{kind.__struct_config__.tag}"
        app.router.add_post(path, routes.post(kind, expected, reply_text))
    return app


def _token_check(token: str, *, metrics_token: str, open_paths: Set[str]) -> Any:
    expected, for_metrics = token.encode(), metrics_token.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in open_paths:
            received = request.headers.get("X-Aiperf-Token", "")
            scheme, _, value = request.headers.get("Authorization", "").partition(" ")
            if not received and scheme.lower() == "bearer":
                received = value.strip()
            presented = received.encode("utf-8", "surrogateescape")
            accepted = (expected, for_metrics) if request.path == METRICS else (expected,)
            if not any(_is_same(presented, each) for each in accepted):
                raise web.HTTPUnauthorized(
                    text="token missing or wrong\n", headers={"WWW-Authenticate": "Bearer"}
                )
            if isinstance(request.protocol, GuardedConnection):
                request.protocol.trust()
        return await handler(request)

    return check


def _is_same(received: bytes, token: bytes) -> bool:
    """Compare in constant time. An empty token would admit every client."""
    return bool(token) and hmac.compare_digest(received, token)


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
        wait_s = min(20.0 if timeout_s is None else timeout_s, MAX_POLL_S)
        operation = GetStatus(None if after is None else int(after), wait_s)
        return _json(await respond(self._provider, operation))

    def get(self, operation: Operation) -> Handler:
        """Return a handler that responds with the result of an operation."""

        async def handle(_request: web.Request) -> web.Response:
            return _json(await self._respond(operation))

        return handle

    def post(self, kind: type[Operation], expected: str, reply_text: str) -> Handler:
        """Return a handler that carries out an operation of this kind from the request's body."""

        async def handle(request: web.Request) -> web.Response:
            try:
                operation = msgspec.json.decode(await request.read() or b"{}", type=kind)
            except msgspec.DecodeError as error:
                raise web.HTTPBadRequest(text=f"expected {expected}: {error}\n") from error
            await self._respond(operation)
            if isinstance(operation, Collected):
                # The response must be sent before the process may end.
                asyncio.get_running_loop().call_later(0.05, self._provider.collected)
            return web.Response(status=202, text=f"{reply_text}\n")

        return handle

    async def _respond(self, operation: Operation) -> bytes:
        try:
            return await respond(self._provider, operation)
        except Refused as refused:
            raise web.HTTPConflict(text=f"{refused}\n") from refused

    async def results(self, _request: web.Request) -> web.Response:
        return _json(msgspec.json.encode(await self._manifest()))

    async def result(self, request: web.Request) -> web.StreamResponse:
        manifest = await self._manifest()
        name = request.match_info["name"]
        # Only files in the manifest are served, so no name can lead out of the folder.
        entry = next((each for each in manifest.files if each.name == name), None)
        if entry is None:
            raise web.HTTPNotFound(text=f"no result is called {name!r}; see /v1/results\n")
        path = self._provider.folder() / name
        return await send_file(request, path, size=entry.size, sha256=entry.sha256)

    async def _manifest(self) -> Manifest:
        manifest = await asyncio.to_thread(written_manifest, self._provider.folder())
        if manifest is None:
            raise web.HTTPConflict(text="the results are not written yet\n")
        return manifest


_POSTS: tuple[tuple[type[Operation], str, str], ...] = (
    (Cancel, '{"reason": "..."}', "stopping"),
    (Start, '{"at_wall_ns": N}', "starting"),
    (Events, '{"start_wall_ns": N, "events": [...]}', "noted"),
    (ScalingReport, '{"replicas": [...], "changes": [...]}', "noted"),
    (Collected, "{}", "ending"),
)
"""Operations with their expected body and their response over HTTP."""


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


def _json(content: bytes) -> web.Response:
    return web.Response(body=content, content_type="application/json")


async def send_file(
    request: web.Request, path: Path, *, size: int, sha256: str
) -> web.StreamResponse:
    """Respond to `request` with the first `size` bytes of `path`, or a range of them."""
    etag, has_body = f'"{sha256}"', request.method != "HEAD"
    wants_gzip = has_body and "gzip" in request.headers.get("Accept-Encoding", "").lower()
    use_gzip = wants_gzip and "Range" not in request.headers and path.suffix not in _PACKED
    wants_bytes = request.headers.get("Accept") == BYTES
    content_type = BYTES if wants_bytes else _TYPES.get(path.suffix, BYTES)
    headers = {
        # Compressed bytes are another representation and need their own tag (RFC 9110 8.8.3).
        "ETag": f'"{sha256}-gzip"' if use_gzip else etag,
        "Accept-Ranges": "bytes",
        "Content-Type": content_type,
        "Vary": "Accept, Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
        "X-Content-Sha256": sha256,
    }
    if request.headers.get("If-None-Match") in (headers["ETag"], "*"):
        return web.Response(status=304, headers=headers)
    first, last = _wanted(request, size, etag, headers)
    is_part = (first, last) != (0, size - 1)
    if is_part:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    response = web.StreamResponse(status=206 if is_part else 200, headers=headers)
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise web.HTTPNotFound(text=f"{path.name}: {error.strerror}\n") from error
    with file:
        if use_gzip:
            response.enable_compression(web.ContentCoding.gzip)
        else:
            response.content_length = last + 1 - first
        file.seek(first)
        try:
            await response.prepare(request)
            if has_body:
                await _copy(file, response, last + 1 - first)
        except ConnectionError:
            log.info("%s: the client disconnected before the end", path.name)
    return response


async def _copy(file: BinaryIO, response: web.StreamResponse, size: int) -> None:
    left = size
    while left > 0:
        chunk = await asyncio.to_thread(file.read, min(CHUNK, left))
        if not chunk:
            # The client notices an aborted response, but not a short one.
            raise EOFError("the file is shorter than in its manifest")
        left -= len(chunk)
        await response.write(chunk)
    await response.write_eof()


def _wanted(request: web.Request, size: int, etag: str, headers: dict[str, str]) -> tuple[int, int]:
    """Return the first and last byte to send. Raises HTTPRequestRangeNotSatisfiable."""
    whole = (0, size - 1)
    wanted = _RANGE.fullmatch(request.headers.get("Range", ""))
    if wanted is None or request.headers.get("If-Range") not in (None, etag):
        return whole
    begin, end = wanted.groups()
    if not (begin or end):
        return whole
    if begin:
        first, last = int(begin), min(int(end), size - 1) if end else size - 1
    else:
        first, last = max(0, size - int(end)), size - 1
    if first >= size or first > last:
        raise web.HTTPRequestRangeNotSatisfiable(
            headers={"Content-Range": f"bytes */{size}", "ETag": headers["ETag"]}
        )
    return first, last
