"""Opens a connection from this machine to a stack's results.

If the stack exposes its results, that address is tried first. Then comes a port-forward, which
needs only a right and bypasses all network policies. The API server's own proxy is the fallback for
clusters that refuse port-forwards. The API server takes `Authorization` for its own credentials, so
a listener on the loopback adds them to each request, and the results' token travels as
`X-Aiperf-Token`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.port_forward import LOOPBACK, PortForward
from aiperf_svc.domain.errors import EnvironmentProblem

PROBE_S = 5.0
"""Time within which the results' pod must respond."""
RETRY_S = 0.2
NODE = "NODE"
"""Placeholder for any node's address in the URL of a NodePort."""
NODE_ADDRESSES = ("ExternalIP", "InternalIP")
CANDIDATES = 3
"""Most nodes to try: a NodePort is on all of them."""
LARGEST_BODY = 2**20
NOT_PASSED = frozenset(
    {
        "host", "authorization", "connection", "keep-alive", "transfer-encoding", "upgrade",
        "content-length", "te", "trailer", "proxy-authorization", "accept-encoding",
    }
)  # fmt: skip
"""Request headers that concern one hop only."""
NOT_RETURNED = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "trailer"})
POD_UNREACHABLE = (502, 503, 504)
"""Statuses of the API server's own responses when it cannot reach the pod."""

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_results(cluster: Cluster, *, outputs: Mapping[str, Any]) -> AsyncIterator[str]:
    """Yield the base URL of a stack's results API, from the stack's outputs.

    The first address at which the API responds is used. If none does, the port-forward is used,
    which works as soon as its pod does.
    """
    results = outputs["results"]
    where: dict[str, Any] = {
        "namespace": str(outputs["namespace"]),
        "service": str(results["service"]),
        "port": int(results["port"]),
    }
    for url in await _exposed(cluster, str(results.get("url") or "")):
        if await _becomes_responsive(url):
            log.info("results at %s", url)
            yield url
            return
    async with contextlib.AsyncExitStack() as stack:
        forward = await stack.enter_async_context(PortForward(cluster, **where))
        url = forward.url
        if not await _responds(url):
            proxy = await stack.enter_async_context(ServiceProxy(cluster, **where))
            if await _responds(proxy.url):
                log.warning("no port-forward (%s); using the API server's proxy", forward.problem)
                url = proxy.url
        log.info("results at %s", url)
        yield url


async def _exposed(cluster: Cluster, url: str) -> list[str]:
    """Return the addresses at which the stack exposes its results."""
    if NODE not in url:
        return [url] if url else []
    try:
        nodes = (await cluster.get("/api/v1/nodes", limit=str(CANDIDATES)))["items"]
    except Refused as error:
        log.warning("cannot list nodes, so the NodePort is not used: %s", error)
        return []
    return [url.replace(NODE, address) for address in node_addresses(nodes)]


def node_addresses(nodes: list[dict[str, Any]]) -> list[str]:
    """Return the nodes' addresses, external ones first."""
    found = [each for node in nodes for each in node.get("status", {}).get("addresses", ())]
    return [
        f"[{each['address']}]" if ":" in each["address"] else str(each["address"])
        for kind in NODE_ADDRESSES
        for each in found
        if each["type"] == kind
    ]


async def _becomes_responsive(url: str) -> bool:
    """Wait until the URL responds. Nodes and load balancers need a moment for a new Service."""
    end_mono_s = time.monotonic() + PROBE_S
    while True:
        if await _responds(url):
            return True
        if time.monotonic() >= end_mono_s:
            return False
        await asyncio.sleep(RETRY_S)


async def _responds(url: str) -> bool:
    timeout = aiohttp.ClientTimeout(total=PROBE_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/healthz") as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


class ServiceProxy:
    """A port of a Service, proxied to this machine. An async context manager."""

    def __init__(self, cluster: Cluster, *, namespace: str, service: str, port: int) -> None:
        self._cluster = cluster
        self._base = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        # The download ends with the client's connection.
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
                if upstream.status in POD_UNREACHABLE:
                    return _aborted(request)
                return await _returned(request, upstream)
        except (aiohttp.ClientError, EnvironmentProblem, TimeoutError, OSError):
            return _aborted(request)


async def _returned(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {k: v for k, v in upstream.headers.items() if k.lower() not in NOT_RETURNED}
    response = web.StreamResponse(status=upstream.status, headers=headers)
    await response.prepare(request)
    async for chunk in upstream.content.iter_any():
        await response.write(chunk)
    await response.write_eof()
    return response


def _aborted(request: web.Request) -> web.StreamResponse:
    """Abort the connection as a port-forward does, so that clients retry in the same way."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
