"""The watch on a stack's objects during its run."""

import asyncio
from typing import Any, cast

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.watching.run_watch import RunWatch
from aiperf_svc.plan.stack import StackPlan
from tests.support.plans import guest_plan, make_plan

Json = dict[str, Any]
SPACE, ANCHOR = "/api/v1/namespaces/n", "/api/v1/namespaces/n/configmaps/anchor-bench"
PODS = "/api/v1/namespaces/n/pods"
WAIT_S = 10.0


class Looked:
    """A cluster whose responses a test replaces. Exceptions are raised."""

    server = "https://api"

    def __init__(self) -> None:
        self.responses: dict[str, Json | Exception] = {
            path: {"metadata": {"uid": path}} for path in (SPACE, ANCHOR)
        }
        self.responses[PODS] = {"items": [pod("records-manager")]}
        self.requests: dict[str, Json] = {}
        self.looks = 0
        self.was_polled = asyncio.Event()

    async def get(self, path: str, **params: Any) -> Json:
        self.requests[path] = params
        self.looks += 1
        self.was_polled.set()
        response = self.responses[path]
        if isinstance(response, Exception):
            raise response
        return response

    async def next_look(self) -> None:
        self.was_polled.clear()
        await self.was_polled.wait()


def pod(component: str, **metadata: Any) -> Json:
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"name": component, "uid": component, "labels": labels, **metadata}}


def refused(status: int) -> Refused:
    return Refused(f"no ({status})", status=status, reason="")


def watch(cluster: Looked, notes: list[str], plan: StackPlan | None = None) -> RunWatch:
    return RunWatch(
        cast(Cluster, cluster),
        plan or make_plan(),
        namespace="n",
        note=notes.append,
        poll_s=0.001,
        response_s=0.01,
    )


async def lost_after(cluster: Looked, watched: RunWatch, **changes: Any) -> list[str]:
    async with asyncio.timeout(WAIT_S):
        losses = asyncio.create_task(watched.next_losses())
        await cluster.next_look()
        while cluster.looks < 6:
            await cluster.next_look()
        cluster.responses |= {globals()[name]: response for name, response in changes.items()}
        return [loss.line for loss in await losses]


async def test_deleted_namespace_is_noticed() -> None:
    cluster = Looked()
    gone = await lost_after(cluster, watch(cluster, []), SPACE=refused(404))
    assert gone == ["Namespace n was deleted during the run"]
    assert ANCHOR not in cluster.requests


async def test_existing_namespace_watches_the_anchor() -> None:
    cluster = Looked()
    gone = await lost_after(cluster, watch(cluster, [], guest_plan()), ANCHOR=refused(404))
    assert gone == ["ConfigMap anchor-bench was deleted during the run"]


async def test_only_single_pods_are_listed() -> None:
    cluster = Looked()
    listed = {"items": [pod("records-manager", deletionTimestamp="2026-01-01T00:00:00Z")]}
    assert await lost_after(cluster, watch(cluster, []), PODS=listed) == [
        "pod records-manager was deleted"
    ]
    selector = cluster.requests[PODS]["labelSelector"]
    assert selector.startswith("aiperf.dev/stack=bench,app.kubernetes.io/component in (")
    names = set(selector.partition("(")[2].rstrip(")").split(","))
    assert {"system-controller", "records-manager", "target"} <= names
    assert not {"worker", "record-processor", "deadline"} & names


async def test_unreadable_objects_are_not_watched() -> None:
    cluster = Looked()
    cluster.responses |= {SPACE: refused(403), PODS: refused(403)}
    watched = watch(cluster, [], guest_plan())
    assert await lost_after(cluster, watched, ANCHOR=refused(404)) == [
        "ConfigMap anchor-bench was deleted during the run"
    ]


async def test_silent_api_server_is_noted_once() -> None:
    cluster, notes = Looked(), list[str]()
    watched = watch(cluster, notes)
    async with asyncio.timeout(WAIT_S):
        losses = asyncio.create_task(watched.next_losses())
        await cluster.next_look()
        response, cluster.responses[SPACE] = cluster.responses[SPACE], Unreachable("refused")
        while not notes:
            await cluster.next_look()
        assert "the API server at https://api has not responded for" in notes[0]
        assert watched.silence
        cluster.responses[SPACE] = response
        while len(notes) < 2:
            await cluster.next_look()
        assert (watched.silence, losses.done()) == ("", False)
        losses.cancel()
    assert notes[1].startswith("the API server responds again after")
