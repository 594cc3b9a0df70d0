"""Watches the replicas of a server, and what desires them, while a load changes.

Each type is watched by a connection of its own, and each message is stamped when it arrives. Types
that the cluster does not have are left out. Of a replica that has started, its log and its own page
of metrics are read.
"""

import asyncio
import contextlib
import re
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
"""Time between two attempts while the API server does not respond."""
PAGE_S = 0.25
"""Time between two reads of a replica's page: the error of its first token."""
WATCH_S = 290
"""Time after which the API server ends a watch, and it begins again where it ended."""
FIRST_LISTS = 30
"""Failed attempts to list a type for the first time after which it is left out: the watch begins
when all others are listed. The storage of an API server elects a leader sooner, and a broken
conversion of a type lasts."""
GONE = 410
MOST_LOGS = 16
"""Most logs that are followed at the same time: each keeps one of the runner's connections to the
API server, of which the run needs some too."""
TOKENS = frozenset({"generation_tokens", "time_to_first_token"})
"""Quantities of a server's page that count from its first token on."""


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
"""Decisions are listed before pods, so that no replica seems to come before its own."""


class WatchedServer(NamedTuple):
    """The pods of a server, and how a replica shows what it does."""

    namespace: str
    labels: Mapping[str, str]
    port: int
    """Port of its page of metrics."""
    path: str
    loaded: re.Pattern[str] | None
    """Line of its log that shows that its model is loaded."""


class ScalingWatch:
    """Watches one server. Its log is complete from the moment that `has_begun` is set."""

    def __init__(
        self, cluster: Cluster, server: WatchedServer, *, clock_ns: Callable[[], int]
    ) -> None:
        """`clock_ns` stamps the messages."""
        self._cluster, self._server, self._clock_ns = cluster, server, clock_ns
        self.log = ReplicaLog(server.labels, server.port)
        self.has_begun = asyncio.Event()
        self._left_to_list = len(TYPES)
        self._open_logs = 0
        self._tasks = Tasks()

    async def run(self) -> None:
        async with self._tasks as tasks:
            watches = [tasks.start(self._watch(each), f"watch {each.resource}") for each in TYPES]
            await asyncio.gather(*watches)
            # No type can be watched.
            await asyncio.Event().wait()

    async def _watch(self, watched: ResourceType) -> None:
        """Follow the objects of a type as long as the API server allows it."""
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
                        self._listed()
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
                self._listed()

    def _listed(self) -> None:
        self._left_to_list -= 1
        if not self._left_to_list:
            self.has_begun.set()

    async def _list(
        self,
        watched: ResourceType,
        path: str,
        params: dict[str, str],
        known: dict[str, Json],
        is_first: bool,
    ) -> str:
        """Read the present objects, and return the version from which a watch continues."""
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
        """Handle the messages of watches, one after the other, until a list is needed again."""
        more = {"watch": "1", "timeoutSeconds": str(WATCH_S), "allowWatchBookmarks": "true"}
        while True:
            lines = self._cluster.lines(path, **params, **more, resourceVersion=version)
            async with contextlib.aclosing(lines):
                async for message in lines:
                    change, found = message["type"], message["object"]
                    if change == "ERROR":
                        if found.get("code") == GONE:
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
        """Follow the log of a replica until the line comes that is looked for. What follows ends
        with the container, and with the connection, and then begins again."""
        path = f"{PODS.path(self._server.namespace)}/{replica.name}/log"
        if self._open_logs >= MOST_LOGS:
            self._leave_out(f"pods/log (more than {MOST_LOGS} replicas start at the same time)")
            return
        params = {"follow": "true", "container": replica.container}
        with self._unless_refused("pods/log"), self._counted_log():
            while not self.log.is_gone(replica.uid):
                with contextlib.suppress(Unreachable, aiohttp.ClientError, TimeoutError):
                    if await self._has_line(path, params, loaded):
                        self.log.note(replica.uid, "loaded", self._clock_ns())
                        return
                await asyncio.sleep(RETRY_S)

    async def _has_line(self, path: str, params: dict[str, str], wanted: re.Pattern[str]) -> bool:
        """Follow a log until the line comes, and return true, or until the log ends."""
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
        reader, before = PageReader(), 0.0
        with self._unless_refused("pods/proxy"):
            while not self.log.is_gone(replica.uid):
                tokens = await self._tokens(path, reader)
                if tokens > before and self.log.is_ready(replica.uid):
                    self.log.note(replica.uid, "first_token", self._clock_ns())
                    return
                # Tokens of a warmup of its own are none of the load's.
                before = max(before, tokens)
                await asyncio.sleep(PAGE_S)

    async def _tokens(self, path: str, reader: PageReader) -> float:
        """Return what the page counts; 0 while there is no page."""
        try:
            page = reader.read(await self._cluster.text(path))
        except Refused as error:
            if error.status in (401, 403):
                raise
            return 0.0
        except (Unreachable, PageError):
            return 0.0
        return sum(
            value
            for series, value in page.values.items()
            if any(each.name in TOKENS for each in portables_of(series))
        )

    @contextlib.contextmanager
    def _unless_refused(self, what: str) -> Iterator[None]:
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
