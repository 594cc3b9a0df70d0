"""A silent API server is reported once, and so is its recovery."""

import asyncio
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.watching.contact import watched_contact

WAIT_S = 10.0


class Asked:
    """A cluster with one response that a test replaces: an exception is raised, and None hangs."""

    server = "https://api"

    def __init__(self, response: dict[str, Any] | Exception | None) -> None:
        self.response = response
        self.looks = asyncio.Semaphore(0)

    async def get(self, path: str, **params: Any) -> dict[str, Any]:
        self.looks.release()
        if self.response is None:
            await asyncio.Event().wait()
        if isinstance(self.response, Exception):
            raise self.response
        assert self.response is not None
        return self.response


class Notes:
    """The notes so far, and a wait for the next note."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    async def next(self) -> str:
        async with asyncio.timeout(WAIT_S):
            return await self.lines.get()


def refused(status: int) -> Refused:
    return Refused(f"no ({status})", status=status, reason="")


@pytest.mark.parametrize(
    "silence", [Unreachable("refused"), None, refused(503)], ids=["refuses", "hangs", "busy"]
)
@pytest.mark.parametrize("response", [{"kind": "x"}, refused(403)], ids=["found", "not allowed"])
async def test_silence_and_recovery_are_noted_once(
    silence: Exception | None, response: dict[str, Any] | Exception
) -> None:
    cluster, notes = Asked(silence), Notes()
    async with watched_contact(
        cast(Cluster, cluster), note=notes.lines.put_nowait, poll_s=0.001, response_s=0.01
    ):
        note = await notes.next()
        assert note.startswith("the API server at https://api has not responded for ")
        assert (f"({silence})" in note) is (silence is not None)
        cluster.looks = asyncio.Semaphore(0)
        async with asyncio.timeout(WAIT_S):
            for _ in range(3):
                await cluster.looks.acquire()
        cluster.response = response
        assert (await notes.next()).startswith("the API server responds again after ")
    assert notes.lines.empty()


async def test_contact_watch_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        async with watched_contact(cast(Cluster, Asked(None)), note=print):
            raise ZeroDivisionError
    assert [task.get_name() for task in asyncio.all_tasks() if "API" in task.get_name()] == []
