"""Watches the replicas of a server and their scalers during a changing load.

Each type has its own watch connection, and each message gets a timestamp on arrival. Types that the
cluster does not have are left out. The log and the metrics page of each started replica are read
too.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import aiohttp

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import ResourceType, label_selector
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.core.scaling.replica_log import (
    ADAPTER,
    EVENT,
    HPA,
    POD,
    SCALED_OBJECT,
    FollowReplica,
    ReplicaLog,
)
from aiperf_svc.core.telemetry.families import portables_of
from aiperf_svc.core.telemetry.page import PageError, PageReader
from aiperf_svc.domain.json_objects import Json

RETRY_S = 1.0
"""Interval between attempts while the API server does not respond."""
PAGE_S = 0.25
"""Interval between reads of a replica's page, which is the error of the time of its first token."""
WATCH_S = 290
"""Time after which the API server ends a watch; the next watch continues from there."""
FIRST_LISTS = 30
"""Failed attempts to list a type for the first time before it is left out: the watch starts when
all other types are listed. The API server's storage elects a leader sooner, while a broken
conversion of a type persists."""
STATUS_GONE = 410
MAX_LOGS = 16
"""Maximum number of logs followed at the same time: each uses one of the runner's connections to
the API server, and the run needs some of them."""
UNREAD_S = 10.0
"""Time without its page after which a ready replica is reported."""
TOKENS = frozenset({"generation_tokens", "time_to_first_token"})
"""Metrics of a server's page that count from its first token on."""


PODS = ResourceType("", "v1", "pods", POD, True)
TYPES = (
    ResourceType("apps", "v1", "deployments", "Deployment", True),
    ResourceType("apps", "v1", "statefulsets", "StatefulSet", True),
    ResourceType("autoscaling", "v2", "horizontalpodautoscalers", HPA, True),
    ResourceType("keda.sh", "v1alpha1", "scaledobjects", SCALED_OBJECT, True),
    ResourceType("nvidia.com", "v1alpha1", "dynamographdeploymentscalingadapters", ADAPTER, True),
    PODS,
    ResourceType("", "v1", "events", EVENT, True),
)
"""Decisions are listed before pods, so a replica never precedes the decision to create it."""


class WatchedServer(NamedTuple):
    """The pods of a server, and how to observe a replica."""

    namespace: str
    labels: Mapping[str, str]
    port: int
    """Port of its metrics page."""
    path: str
    loaded: re.Pattern[str] | None
    """Line of its log after which its model is loaded."""


class ScalingWatch:
    """Watches one server. Its event log is complete from the time that `has_begun` is set."""

    def __init__(
        self, cluster: Cluster, server: WatchedServer, *, clock_ns: Callable[[], int]
    ) -> None:
        """`clock_ns` stamps the messages."""
        self._cluster, self._server, self._clock_ns = cluster, server, clock_ns
        self.log = ReplicaLog(server.labels, server.port)
        self.has_begun = asyncio.Event()
        self._unlisted_types = len(TYPES)
        self._open_logs = 0
        self._tasks = Tasks()

    async def run(self) -> None:
        async with self._tasks as tasks:
            watches = [tasks.start(self._watch(each), f"watch {each.resource}") for each in TYPES]
            await asyncio.gather(*watches)
            # The user may watch no type.
            await asyncio.Event().wait()

    async def _watch(self, watched: ResourceType) -> None:
        """Follow the objects of a type while the API server allows it."""
        path, params = watched.path(self._server.namespace), dict[str, str]()
        if watched is PODS and self._server.labels:
            params["labelSelector"] = label_selector(self._server.labels)
        known: dict[str, Json] = {}
        is_first, failures = True, 0
        try:
            while True:
                try:
                    version = await self._list(watched, path, params, known, is_first)
                    if is_first:
                        is_first = False
                        self._note_listed()
                    await self._follow(watched, path, params, known, version)
                except Unreachable:
                    pass
                except Refused as error:
                    failures += 1
                    if not error.is_temporary or (is_first and failures == FIRST_LISTS):
                        raise
                await asyncio.sleep(RETRY_S)
        except Refused as error:
            if error.status != 404:
                self._leave_out(f"{watched.resource} ({error})")
            if is_first:
                self._note_listed()

    def _note_listed(self) -> None:
        self._unlisted_types -= 1
        if not self._unlisted_types:
            self.has_begun.set()

    async def _list(
        self,
        watched: ResourceType,
        path: str,
        params: dict[str, str],
        known: dict[str, Json],
        is_first: bool,
    ) -> str:
        """List the present objects, and return the resource version for the watch."""
        listed = await self._cluster.get(path, **params)
        present = {each["metadata"]["uid"]: each for each in listed["items"]}
        for uid in known.keys() - present.keys():
            self._handle(watched, "DELETED", known.pop(uid))
        for uid, each in present.items():
            known[uid] = each
            self._handle(watched, "MODIFIED", each, is_first=is_first)
        return str(listed["metadata"]["resourceVersion"])

    async def _follow(
        self,
        watched: ResourceType,
        path: str,
        params: dict[str, str],
        known: dict[str, Json],
        version: str,
    ) -> None:
        """Handle the messages of successive watches until a new list is needed."""
        more = {"watch": "1", "timeoutSeconds": str(WATCH_S), "allowWatchBookmarks": "true"}
        while True:
            lines = self._cluster.lines(path, **params, **more, resourceVersion=version)
            async with contextlib.aclosing(lines):
                async for message in lines:
                    change, found = message["type"], message["object"]
                    if change == "ERROR":
                        if found.get("code") == STATUS_GONE:
                            return
                        raise Unreachable(str(found.get("message")))
                    version = found["metadata"]["resourceVersion"]
                    if change == "BOOKMARK":
                        continue
                    if change == "DELETED":
                        known.pop(found["metadata"]["uid"], None)
                    else:
                        known[found["metadata"]["uid"]] = found
                    self._handle(watched, change, found)

    def _handle(
        self, watched: ResourceType, change: str, found: Json, *, is_first: bool = False
    ) -> None:
        for each in self.log.handle(
            watched.kind, change, found, now_wall_ns=self._clock_ns(), is_first=is_first
        ):
            self._tasks.start(self._read_page(each), f"page of {each.name}")
            if self._server.loaded is not None:
                self._tasks.start(self._read_log(each, self._server.loaded), f"log of {each.name}")

    async def _read_log(self, replica: FollowReplica, loaded: re.Pattern[str]) -> None:
        """Follow the log of a replica until the expected line appears. Following the log ends with
        the container or the connection, and is then restarted."""
        path = f"{PODS.path(self._server.namespace)}/{replica.name}/log"
        if self._open_logs >= MAX_LOGS:
            self._leave_out(f"pods/log (more than {MAX_LOGS} replicas start at the same time)")
            return
        params = {"follow": "true", "container": replica.container}
        with self._leave_out_if_refused("pods/log"), self._counted_log():
            while not self.log.is_gone(replica.uid):
                with contextlib.suppress(Unreachable, aiohttp.ClientError, TimeoutError):
                    if await self._has_line(path, params, loaded):
                        self.log.note(replica.uid, "loaded", self._clock_ns())
                        return
                await asyncio.sleep(RETRY_S)

    async def _has_line(self, path: str, params: dict[str, str], wanted: re.Pattern[str]) -> bool:
        """Follow a log. Return true at the expected line, or false when the log ends."""
        async with self._cluster.stream("GET", path, params=params) as response:
            if response.status in (401, 403):
                raise Refused(await response.text(), status=response.status, reason="")
            if response.status >= 400:  # The container has not started again.
                return False
            rest = ""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
                if any(map(wanted.search, lines)):
                    return True
        return False

    async def _read_page(self, replica: FollowReplica) -> None:
        """Read the page of a replica until it counts tokens."""
        pods = PODS.path(self._server.namespace)
        path = f"{pods}/{replica.name}:{self._server.port}/proxy{self._server.path}"
        reader, before, read_mono_s = PageReader(), 0.0, time.monotonic()
        with self._leave_out_if_refused("pods/proxy"):
            while not self.log.is_gone(replica.uid):
                tokens = await self._tokens(path, reader)
                if tokens is not None or not self.log.is_ready(replica.uid):
                    read_mono_s = time.monotonic()
                elif time.monotonic() - read_mono_s >= UNREAD_S:
                    self._leave_out(
                        "first tokens (the API server cannot read the page of a ready replica; a "
                        "NetworkPolicy may forbid it)"
                    )
                tokens = tokens or 0.0
                if tokens > before and self.log.is_ready(replica.uid):
                    self.log.note(replica.uid, "first_token", self._clock_ns())
                    return
                # Tokens of the server's own warmup are not part of the load.
                before = max(before, tokens)
                await asyncio.sleep(PAGE_S)

    async def _tokens(self, path: str, reader: PageReader) -> float | None:
        """Return the count on the page; None while there is no page."""
        try:
            page = reader.read(await self._cluster.text(path))
        except Refused as error:
            if error.status in (401, 403):
                raise
            return None
        except (Unreachable, PageError):
            return None
        return sum(
            value
            for series, value in page.values.items()
            if any(each.name in TOKENS for each in portables_of(series))
        )

    @contextlib.contextmanager
    def _leave_out_if_refused(self, what: str) -> Iterator[None]:
        try:
            yield
        except (Refused, Unreachable, OSError) as error:
            self._leave_out(f"{what} ({error})")

    @contextlib.contextmanager
    def _counted_log(self) -> Iterator[None]:
        self._open_logs += 1
        try:
            yield
        finally:
            self._open_logs -= 1

    def _leave_out(self, line: str) -> None:
        if line not in self.log.not_watched:
            self.log.not_watched.append(line)
