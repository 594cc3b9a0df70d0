"""The watch on a server's replicas: lists, messages, broken watches, logs and pages."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.watching import scaling_watch
from aiperf_svc.adapters.cluster.watching.scaling_watch import ScalingWatch, WatchedServer
from aiperf_svc.core.scaling.report import Replica

Json = dict[str, Any]
PODS = "/api/v1/namespaces/serving/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/serving/deployments"
EVENTS = "/api/v1/namespaces/serving/events"


def pod(name: str, *conditions: str, version: int = 1) -> Json:
    state: Json = {"running": {}} if "Ready" in conditions else {"waiting": {}}
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {"containers": [{"name": "server"}]},
        "status": {
            "conditions": [{"type": each, "status": "True"} for each in conditions],
            "containerStatuses": [{"name": "server", "state": state}],
        },
    }


def deployment(replicas: int) -> Json:
    template = {"metadata": {"labels": {"app": "llm"}}}
    return {
        "metadata": {"name": "llm", "uid": "d", "resourceVersion": "1"},
        "spec": {"replicas": replicas, "template": template},
    }


class Api:
    """Lists of some types, and messages of their watches. Other types do not exist."""

    def __init__(
        self, lists: dict[str, list[list[Json]]], *, forbidden: str = "", broken: str = ""
    ) -> None:
        """Create the API. `lists` has the successive results for each path; the last one repeats.
        Lists of the path `broken` fail."""
        self._lists, self._forbidden, self._broken = lists, forbidden, broken
        self.failures: list[Refused] = []
        """Errors that the next lists raise."""
        self.messages: dict[str, asyncio.Queue[Json | None]] = {
            path: asyncio.Queue() for path in lists
        }
        self.pages: dict[str, str] = {}
        self.log = asyncio.Queue[bytes | Exception | None]()
        """Chunks of logs. An exception is raised, and None ends a log."""

    async def get(self, path: str, **params: str) -> Json:
        if path == self._forbidden:
            raise Refused("may not list", status=403, reason="Forbidden")
        if path == self._broken:
            raise Refused("conversion webhook failed", status=500, reason="InternalError")
        if self.failures:
            raise self.failures.pop()
        if path not in self._lists:
            raise Refused("no such type", status=404, reason="NotFound")
        known = self._lists[path]
        items = known.pop(0) if len(known) > 1 else known[0]
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    async def lines(self, path: str, **params: str) -> AsyncIterator[Json]:
        while (message := await self.messages[path].get()) is not None:
            yield message
        raise Unreachable("the watch broke")

    async def text(self, path: str) -> str:
        return self.pages.get(path, "")

    @contextlib.asynccontextmanager
    async def stream(self, method: str, path: str, *, params: Json) -> AsyncIterator[Any]:
        log = self.log
        assert params == {"follow": "true", "container": "server"}

        class Response:
            status = 200

            class content:
                @staticmethod
                async def iter_any() -> AsyncIterator[bytes]:
                    while (chunk := await log.get()) is not None:
                        if isinstance(chunk, Exception):
                            raise chunk
                        yield chunk

        yield Response

    def send(self, path: str, change: str, found: Json) -> None:
        self.messages[path].put_nowait({"type": change, "object": found})


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # the watch sends no notification
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def watching(
    api: Api, monkeypatch: Any, loaded: str | None = None
) -> AsyncIterator[ScalingWatch]:
    monkeypatch.setattr(scaling_watch, "RETRY_S", 0.0)
    monkeypatch.setattr(scaling_watch, "PAGE_S", 0.0)
    ticks = itertools.count(1)
    server = WatchedServer(
        "serving", {"app": "llm"}, 8000, "/metrics", re.compile(loaded) if loaded else None
    )
    watch = ScalingWatch(cast("Cluster", api), server, clock_ns=lambda: next(ticks))
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(10):
            await watch.has_begun.wait()
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def replica(watch: ScalingWatch, name: str) -> Replica:
    found = [each for each in watch.log.report().replicas if each.name == name]
    return found[0] if found else Replica(name="")


async def test_decision_and_replica_are_seen(monkeypatch: Any) -> None:
    api = Api({DEPLOYMENTS: [[deployment(1)]], PODS: [[pod("a", "Ready")]], EVENTS: [[]]})
    async with watching(api, monkeypatch) as watch:
        api.send(DEPLOYMENTS, "MODIFIED", deployment(2))
        api.send(PODS, "ADDED", pod("b"))
        api.send(PODS, "MODIFIED", pod("b", "PodScheduled", "Ready"))
        await until(lambda: "ready" in replica(watch, "b").wall_ns)
        (change,) = watch.log.report().changes
        assert (change.source, change.before, change.after) == ("Deployment llm", 1, 2)
        assert replica(watch, "a").was_there
        assert not replica(watch, "b").was_there
    assert watch.log.report().not_watched == ()


async def test_broken_watch_is_followed_by_a_list(monkeypatch: Any) -> None:
    api = Api({PODS: [[pod("a")], [pod("b")]]})
    async with watching(api, monkeypatch) as watch:
        api.messages[PODS].put_nowait(None)
        await until(lambda: replica(watch, "b").name)
        assert replica(watch, "a").gone_wall_ns
        assert not replica(watch, "b").was_there


async def test_expired_version_begins_with_a_list(monkeypatch: Any) -> None:
    api = Api({PODS: [[], [pod("b")]]})
    async with watching(api, monkeypatch) as watch:
        api.send(PODS, "ERROR", {"code": 410, "message": "too old resource version"})
        await until(lambda: replica(watch, "b").name)


async def test_failing_api_server_ends_no_watch(monkeypatch: Any) -> None:
    api = Api({PODS: [[], [pod("b")]]})
    async with watching(api, monkeypatch) as watch:
        api.failures.append(Refused("etcd has no leader", status=500, reason="InternalError"))
        api.messages[PODS].put_nowait(None)
        await until(lambda: replica(watch, "b").name)
        assert watch.log.report().not_watched == ()


async def test_type_that_is_never_listed_is_left_out(monkeypatch: Any) -> None:
    api = Api({PODS: [[]]}, broken=DEPLOYMENTS)
    async with watching(api, monkeypatch) as watch:
        assert watch.log.report().not_watched == ("deployments (conversion webhook failed)",)


async def test_types_that_may_not_be_listed_are_named(monkeypatch: Any) -> None:
    api = Api({PODS: [[]]}, forbidden=EVENTS)
    async with watching(api, monkeypatch) as watch:
        assert watch.log.report().not_watched == ("events (may not list)",)


async def test_log_and_page_show_when_replicas_are_useful(monkeypatch: Any) -> None:
    api = Api({PODS: [[]]})
    page = f"{PODS}/b:8000/proxy/metrics"
    api.pages[page] = 'vllm:generation_tokens_total{model_name="m"} 7\n'
    async with watching(api, monkeypatch, "model loaded") as watch:
        api.send(PODS, "ADDED", pod("b", "Ready"))
        api.log.put_nowait(b"starting\nmodel lo")
        api.log.put_nowait(b"aded\n")
        await until(lambda: {"loaded", "first_token"} <= replica(watch, "b").wall_ns.keys())


async def test_log_that_ends_is_followed_again(monkeypatch: Any) -> None:
    api = Api({PODS: [[]]})
    async with watching(api, monkeypatch, "model loaded") as watch:
        api.send(PODS, "ADDED", pod("b", "Ready"))
        for item in (b"starting\n", None, aiohttp.ClientPayloadError(), b"model loaded\n"):
            api.log.put_nowait(item)
        await until(lambda: "loaded" in replica(watch, "b").wall_ns)
        assert watch.log.report().not_watched == ()


async def test_logs_beyond_the_limit_are_named(monkeypatch: Any) -> None:
    api = Api({PODS: [[]]})
    monkeypatch.setattr(scaling_watch, "MAX_LOGS", 1)
    async with watching(api, monkeypatch, "model loaded") as watch:
        for name in ("a", "b"):
            api.send(PODS, "ADDED", pod(name, "Ready"))
        await until(lambda: watch.log.report().not_watched)
        assert "more than 1 replicas" in watch.log.report().not_watched[0]


async def test_tokens_before_readiness_are_none_of_the_loads(monkeypatch: Any) -> None:
    api = Api({PODS: [[]]})
    page = f"{PODS}/b:8000/proxy/metrics"
    api.pages[page] = "vllm:generation_tokens_total 7\n"
    running = pod("b", "Ready")
    running["status"]["conditions"] = []
    async with watching(api, monkeypatch) as watch:
        api.send(PODS, "ADDED", running)
        reads = api.pages = ReadPages(api.pages)
        await until(lambda: reads.count > 2)
        api.send(PODS, "MODIFIED", pod("b", "Ready"))
        await until(lambda: "ready" in replica(watch, "b").wall_ns)
        seen = reads.count
        await until(lambda: reads.count > seen + 2)
        assert "first_token" not in replica(watch, "b").wall_ns
        reads[page] = "vllm:generation_tokens_total 8\n"
        await until(lambda: "first_token" in replica(watch, "b").wall_ns)


async def test_unread_page_of_a_replica_is_named(monkeypatch: Any) -> None:
    async def forbidden(_path: str) -> str:
        raise Refused("error trying to reach service", status=503, reason="ServiceUnavailable")

    api = Api({PODS: [[]]})
    monkeypatch.setattr(api, "text", forbidden)
    monkeypatch.setattr(scaling_watch, "UNREAD_S", 0.0)
    async with watching(api, monkeypatch) as watch:
        api.send(PODS, "ADDED", pod("b", "Ready"))
        await until(lambda: watch.log.report().not_watched)
        (line,) = watch.log.report().not_watched
        assert line.startswith("first tokens (the API server cannot read the page")


class ReadPages(dict[str, str]):
    """Pages that count their reads."""

    count = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.count += 1
        return super().get(key, default)
