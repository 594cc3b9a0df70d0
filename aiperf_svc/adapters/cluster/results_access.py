"""Opens a connection from this machine to a stack's results.

If the stack exposes its results, that address is tried first. The next choice is a port-forward,
which needs only a right and bypasses all network policies. The API server's own proxy is the
fallback for clusters that refuse port-forwards. The API server consumes `Authorization` for its own
credentials, so a local listener adds them to each request, and the token for the results is sent as
`X-Aiperf-Token`.
"""

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import label_selector
from aiperf_svc.adapters.cluster.ownership import users_of
from aiperf_svc.adapters.host.tasks import Tasks, cancel
from aiperf_svc.core.cluster.conditions import has_ended
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.service_pods import TOKEN_KEY
from aiperf_svc.protocol.ports import Port

PROBE_S = 5.0
"""Time within which the results' pod must respond."""
RETRY_S = 0.2
NODE = "NODE"
"""Placeholder for any node's address in the URL of a NodePort."""
NODE_ADDRESSES = ("ExternalIP", "InternalIP")
CANDIDATES = 3
"""Maximum number of nodes to try: a NodePort is open on all of them."""
MAX_BODY_BYTES = 2**20
HOP_HEADERS = frozenset(
    {
        "host", "authorization", "connection", "keep-alive", "transfer-encoding", "upgrade",
        "content-length", "te", "trailer", "proxy-authorization", "accept-encoding",
    }
)  # fmt: skip
"""Hop-by-hop request headers."""
NOT_RETURNED = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "trailer"})
POD_UNREACHABLE = (502, 503, 504)
"""Statuses of the API server's own responses when it cannot reach the pod."""
PROTOCOL = "v4.channel.k8s.io"
LOOPBACK = "127.0.0.1"
HEARTBEAT_S = 20.0
"""Seconds between pings. A dead connection is detected after 1.5 intervals, even when idle."""
READ_BYTES = 64 * 1024
DATA, ERRORS = 0, 1

log = logging.getLogger(__name__)


async def find_results(cluster: Cluster, stack: str, owner: str) -> Json:
    """Return the outputs of a stack that no state here has, such as one of the component, from its
    objects in the cluster. A label does not identify the owner, so only a stack of this owner
    counts. Raises EnvironmentProblem."""
    users = await users_of(cluster, stack, namespace=None)
    if not users.alive and not users.holder:
        # The user may be allowed to read only their own namespace.
        users = await users_of(cluster, stack, namespace=cluster.namespace)
    if users.holder:
        raise EnvironmentProblem(users.holder)
    if not users.alive:
        raise EnvironmentProblem(
            f"stack {stack} is not up; start it with `aiperf-svc run {stack}` or `pulumi up -s "
            f"{stack}`"
        )
    own = [each for each in users.alive.values() if each.owner == owner]
    if len(own) != 1:
        places = ", ".join(f"{each.namespace} (of {each.owner})" for each in users.alive.values())
        raise EnvironmentProblem(
            f"stack {stack} is up in namespace {places}, but not in this state; a stack of another "
            f"state is used if it is the only one of {owner} (AIPERF_OWNER sets the owner)"
        )
    namespace, port = own[0].namespace, int(Port.RESULTS_API)
    inside = f"/api/v1/namespaces/{namespace}"
    labelled = {"labelSelector": label_selector({STACK_LABEL: stack})}
    services = (await cluster.get(f"{inside}/services", **labelled))["items"]
    ports = {each["metadata"]["name"]: each["spec"].get("ports") or () for each in services}
    name = next((name for name in ports if any(p["port"] == port for p in ports[name])), None)
    if name is None:
        raise EnvironmentProblem(f"stack {stack} in namespace {namespace} has no results yet")
    keys = (await cluster.get(f"{inside}/secrets/keys-{stack}"))["data"]
    return {
        "namespace": namespace,
        "runId": own[0].run_id,
        "results": {"service": name, "port": port},
        "resultsToken": base64.b64decode(keys[TOKEN_KEY]).decode(),
    }


@contextlib.asynccontextmanager
async def open_results(cluster: Cluster, *, outputs: Mapping[str, Any]) -> AsyncIterator[str]:
    """Yield the base URL of a stack's results API, from the stack's outputs.

    The first address at which the API responds is used. If there is none, a port-forward is used;
    it works as soon as its pod runs.
    """
    results = outputs["results"]
    where: Json = {
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
                why = forward.problem or "no response"
                log.warning("no port-forward (%s); using the API server's proxy", why)
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


def node_addresses(nodes: list[Json]) -> list[str]:
    """Return the nodes' addresses, external ones first."""
    found = [each for node in nodes for each in node.get("status", {}).get("addresses", ())]
    return [
        f"[{each['address']}]" if ":" in each["address"] else str(each["address"])
        for kind in NODE_ADDRESSES
        for each in found
        if each["type"] == kind
    ]


async def _becomes_responsive(url: str) -> bool:
    """Wait until the URL responds. Nodes and load balancers need some time for a new Service."""
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
    """Proxies a port of a Service to this machine. An async context manager."""

    def __init__(self, cluster: Cluster, *, namespace: str, service: str, port: int) -> None:
        self._cluster = cluster
        self._base = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        # The download ends when the client's connection does.
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
            # Such a path would leave the Service and reach the whole API with the user's rights.
            raise web.HTTPBadRequest(text="no such path\n")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
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
    """Abort the connection like a broken port-forward, so clients retry in the same way."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


class PortForward:
    """Forwards a port of a Service to this machine. An async context manager.

    A local listener carries each connection to the pod in its own WebSocket, with the API server's
    protocol `v4.channel.k8s.io`. A broken connection does not affect the others, and each new
    connection looks up the current pod. A message is the number of a channel and its bytes: channel
    0 carries data, channel 1 carries error texts. The first message of each channel is the port.

    It never fails as a whole: a connection that cannot be forwarded is closed, and `problem` holds
    the reason.
    """

    def __init__(self, cluster: Cluster, *, namespace: str, service: str, port: int) -> None:
        self._cluster = cluster
        self._namespace, self._service, self._port = namespace, service, port
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem: EnvironmentProblem | None = None
        """Error of the last connection that could not be forwarded; None if there is none."""

    @property
    def url(self) -> str:
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await cancel(*self._tasks)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer), name="port-forward connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step closes nothing.
        task.add_done_callback(lambda _: writer.close())

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod = await pod_of_service(self._cluster, self._namespace, self._service)
            path = f"/api/v1/namespaces/{self._namespace}/pods/{pod}/portforward?ports={self._port}"
            async with self._cluster.websocket(
                path, protocols=(PROTOCOL,), heartbeat_s=HEARTBEAT_S
            ) as pod_side:
                await self._both_ways(reader, writer, pod_side)
        except EnvironmentProblem as problem:
            self.problem = problem
            log.debug("port-forward to %s: %s", self._service, problem)
        except OSError as error:
            log.debug("port-forward to %s broke: %s", self._service, error)
        finally:
            # Do not abort: data of the pod may still be in flight to the reader.
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pod_side: aiohttp.ClientWebSocketResponse,
    ) -> None:
        async with Tasks() as tasks:
            tasks.start(_to_pod(reader, pod_side), "port-forward to the pod")
            tasks.start(self._from_pod(pod_side, writer), "port-forward from the pod")
            # The protocol has no half-closed connections, so the end of one direction ends both.
            done = await tasks.first()
        for task in done:
            task.result()

    async def _from_pod(
        self, pod_side: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter
    ) -> None:
        announced = set[int]()
        async for message in pod_side:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, content = message.data[0], memoryview(message.data)[1:]
            if channel not in announced:
                announced.add(channel)
            elif channel == ERRORS:
                error = " ".join(bytes(content).decode(errors="replace").split())
                raise Refused(f"port-forward: {error}", status=0, reason="")
            elif channel == DATA:
                writer.write(content)
                await writer.drain()


async def _to_pod(reader: asyncio.StreamReader, pod_side: aiohttp.ClientWebSocketResponse) -> None:
    while content := await reader.read(READ_BYTES):
        await pod_side.send_bytes(bytes([DATA]) + content)


async def pod_of_service(cluster: Cluster, namespace: str, service: str) -> str:
    """Return the name of the pod to connect to, preferably a running one. Raises Refused,
    Unreachable."""
    inside = f"/api/v1/namespaces/{namespace}"
    found = await cluster.get(f"{inside}/services/{service}")
    selector = found["spec"].get("selector") or {}
    wanted = label_selector(selector)
    pods = (await cluster.get(f"{inside}/pods", labelSelector=wanted))["items"] if wanted else []
    candidates = sorted(filter(_may_respond, pods), key=_rank)
    if not candidates:
        raise Refused(
            f"no pod is behind service {service} in namespace {namespace}",
            status=404,
            reason="NotFound",
        )
    return str(candidates[-1]["metadata"]["name"])


def _may_respond(pod: Json) -> bool:
    is_going = "deletionTimestamp" in pod["metadata"]
    return not is_going and not has_ended(pod)


def _rank(pod: Json) -> tuple[bool, str]:
    running = pod.get("status", {}).get("phase") == "Running"
    return running, pod["metadata"]["creationTimestamp"]
