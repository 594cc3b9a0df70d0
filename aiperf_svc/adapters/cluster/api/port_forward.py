"""Port-forward to a pod: a listener on the loopback whose connections are carried to the pod over
the API server's WebSocket protocol `v4.channel.k8s.io`.

Each connection has a WebSocket of its own, so a broken one does not affect the others, and each new
one looks up the current pod. A message is a channel's number and its bytes: channel 0 carries the
data, channel 1 carries error texts; the first message of each is the port.
"""

import asyncio
import contextlib
import logging
from typing import Any, Self

import aiohttp

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.domain.errors import EnvironmentProblem

PROTOCOL = "v4.channel.k8s.io"
LOOPBACK = "127.0.0.1"
HEARTBEAT_S = 20.0
"""Seconds between pings. A dead connection is noticed after one and a half of these, even when
idle."""
READ_BYTES = 64 * 1024
DATA, ERRORS = 0, 1

log = logging.getLogger(__name__)
ENDED = ("Succeeded", "Failed")


class PortForward:
    """A port of a Service, forwarded to this machine. An async context manager.

    It never fails as a whole: a connection that cannot be carried is closed, and `problem` holds
    the reason.
    """

    def __init__(self, cluster: Cluster, *, namespace: str, service: str, port: int) -> None:
        self._cluster = cluster
        self._namespace, self._service, self._port = namespace, service, port
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem: EnvironmentProblem | None = None
        """Error of the last connection that could not be carried; None if there is none."""

    @property
    def url(self) -> str:
        """URL of the forwarded port on this machine."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer), name="port-forward connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            # Not abort: data of the pod may still be on its way to the reader.
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pod_side: aiohttp.ClientWebSocketResponse,
    ) -> None:
        ways = [
            asyncio.create_task(_to_pod(reader, pod_side), name="port-forward to the pod"),
            asyncio.create_task(self._from_pod(pod_side, writer), name="port-forward from the pod"),
        ]
        try:
            # The protocol has no half-closed connections, so the end of one way ends both.
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
        for way in done:
            way.result()

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
    """Return the name of the pod to talk to, preferably a running one. Raises Refused,
    Unreachable."""
    inside = f"/api/v1/namespaces/{namespace}"
    found = await cluster.get(f"{inside}/services/{service}")
    selector = found["spec"].get("selector") or {}
    wanted = ",".join(f"{key}={value}" for key, value in selector.items())
    pods = (await cluster.get(f"{inside}/pods", labelSelector=wanted))["items"] if wanted else []
    candidates = sorted(filter(_may_respond, pods), key=_rank)
    if not candidates:
        raise Refused(
            f"no pod is behind service {service} in namespace {namespace}",
            status=404,
            reason="NotFound",
        )
    return str(candidates[-1]["metadata"]["name"])


def _may_respond(pod: dict[str, Any]) -> bool:
    is_going = "deletionTimestamp" in pod["metadata"]
    return not is_going and pod.get("status", {}).get("phase") not in ENDED


def _rank(pod: dict[str, Any]) -> tuple[bool, str]:
    running = pod.get("status", {}).get("phase") == "Running"
    return running, pod["metadata"]["creationTimestamp"]
