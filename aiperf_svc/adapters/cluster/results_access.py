"""Finds a way from this machine to a stack's results.

A port-forward needs only a right, and bypasses all network policies; the API server's proxy is the
fallback. If the stack exposes its results, that address is tried first.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.port_forward import PortForward
from aiperf_svc.adapters.cluster.api.service_proxy import ServiceProxy

PROBE_S = 5.0
"""Time within which the results' pod must respond."""
RETRY_S = 0.2
NODE = "NODE"
"""Placeholder for any node's address in the URL of a NodePort."""
NODE_ADDRESSES = ("ExternalIP", "InternalIP")
CANDIDATES = 3
"""Most nodes to try: a NodePort is on all of them."""

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_results(cluster: Cluster, *, outputs: Mapping[str, Any]) -> AsyncIterator[str]:
    """Yield the base URL of a stack's results API, from the stack's outputs.

    The first way on which the API responds is used; if none does, the port-forward, which works as
    soon as its pod does.
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
        log.warning("which nodes there are is not known: %s", error)
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
    """Wait until the URL responds: nodes and load balancers learn of a new Service a little
    later."""
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
