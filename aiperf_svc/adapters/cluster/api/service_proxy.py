"""Access to a port of a Service through the API server's own proxy, for clusters that refuse
port-forwards.

The API server wants our credentials and takes `Authorization` for its own, so a listener on the
loopback adds them to each request; the results' token travels as `X-Aiperf-Token`.
"""

from typing import Self
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.port_forward import LOOPBACK
from aiperf_svc.domain.errors import EnvironmentProblem

LARGEST_BODY = 2**20
NOT_PASSED = frozenset(
    {
        "host", "authorization", "connection", "keep-alive", "transfer-encoding", "upgrade",
        "content-length", "te", "trailer", "proxy-authorization", "accept-encoding",
    }
)  # fmt: skip
"""Request headers that concern one hop only."""
NOT_RETURNED = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "trailer"})
NOT_THERE = (502, 503, 504)
"""Statuses of the API server's own responses when it cannot reach the pod."""


class ServiceProxy:
    """A port of a Service, proxied to this machine. An async context manager."""

    def __init__(self, cluster: Cluster, *, namespace: str, service: str, port: int) -> None:
        self._cluster = cluster
        self._base = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        # A client that has gone must not keep a download running.
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, handler_cancellation=True,
            shutdown_timeout=1.0,
        )  # fmt: skip
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """URL of the proxied port on this machine."""
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path_qs
        if ".." in unquote(request.rel_url.raw_path).split("/"):
            # Such a path would leave the Service and reach the whole API with our rights.
            raise web.HTTPBadRequest(text="no such path\n")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in NOT_PASSED}
        headers["Accept-Encoding"] = "identity"
        body = await request.read() if request.can_read_body else None
        try:
            async with self._cluster.stream(
                request.method, self._base + path, headers=headers, data=body
            ) as upstream:
                if upstream.status in NOT_THERE:
                    return _broken_off(request)
                return await _returned(request, upstream)
        except (aiohttp.ClientError, EnvironmentProblem, TimeoutError, OSError):
            return _broken_off(request)


async def _returned(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {k: v for k, v in upstream.headers.items() if k.lower() not in NOT_RETURNED}
    response = web.StreamResponse(status=upstream.status, headers=headers)
    await response.prepare(request)
    async for chunk in upstream.content.iter_any():
        await response.write(chunk)
    await response.write_eof()
    return response


def _broken_off(request: web.Request) -> web.StreamResponse:
    """Abort the connection as a port-forward does, so that clients retry in the same way."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
