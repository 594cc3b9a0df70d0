"""When each of several stacks begins."""

import asyncio
from collections.abc import Sequence

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.stack import turns as turns_module
from aiperf_svc.runner.stack.turns import Turns, giving
from tests.support.plans import plan_it

CONFIG = {
    "endpoint": {"url": "http://10.0.0.1:8000", "model": "m"},
    "load": {"concurrency": 1, "requests": 10},
}


def plan(name: str) -> StackPlan:
    return plan_it(BenchmarkConfig.model_validate(CONFIG), stack=name, version="1")


class Cluster:
    """A cluster that has room for stacks of these names, or is silent."""

    def __init__(self, *room_for: str) -> None:
        self.room_for, self.is_silent, self.looks = set(room_for), False, 0
        self.error: Exception | None = None
        self.has_looked = asyncio.Event()

    async def find(self, running: Sequence[StackPlan], waiting: Sequence[StackPlan]) -> int | None:
        assert running
        self.looks += 1
        self.has_looked.set()
        if self.error is not None:
            raise self.error
        names = [each.identity.stack for each in waiting]
        return next((at for at, name in enumerate(names) if name in self.room_for), None)


class Stacks:
    """Stacks that take their turns; each goes on until it is told to end."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.begun: list[str] = []
        self.refused: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._news = asyncio.Event()

    async def run(self, name: str) -> None:
        own = plan(name)
        self._ends[name] = asyncio.Event()
        if not await self._turns.wait(own):
            self.refused.append(name)
            return
        self.begun.append(name)
        self._news.set()
        await self._ends[name].wait()
        self._turns.leave(own)

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    async def wait_for(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while self.begun != list(names):
                self._news.clear()
                await self._news.wait()


async def test_so_many_run_at_a_time_and_the_next_begins_when_one_has_ended() -> None:
    turns = Turns(2)
    stacks = Stacks(turns)
    async with giving(turns), asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(stacks.run(name))
        await stacks.wait_for("a", "b")
        stacks.end("b")
        await stacks.wait_for("a", "b", "c")
        stacks.end("a", "c")


async def test_a_stack_with_room_goes_before_one_without_and_the_first_needs_none() -> None:
    cluster = Cluster("c")
    turns = Turns(9, cluster.find)
    stacks = Stacks(turns)
    async with giving(turns), asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(stacks.run(name))
        await stacks.wait_for("a", "c")
        # What a stack that is alone lacks is for its own checks to say.
        stacks.end("a", "c")
        await stacks.wait_for("a", "c", "b")
        stacks.end("b")


async def test_a_full_cluster_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "POLL_S", 0.001)
    cluster = Cluster()
    turns = Turns(9, cluster.find)
    stacks = Stacks(turns)
    async with giving(turns), asyncio.TaskGroup() as group:
        group.create_task(stacks.run("a"))
        group.create_task(stacks.run("b"))
        await cluster.has_looked.wait()
        cluster.room_for.add("b")
        await stacks.wait_for("a", "b")
        stacks.end("a", "b")


async def test_a_silent_cluster_lets_the_next_begin_when_no_other_is_there() -> None:
    cluster = Cluster("b")
    cluster.error = EnvironmentProblem("does not respond")
    turns = Turns(9, cluster.find)
    stacks = Stacks(turns)
    async with giving(turns), asyncio.TaskGroup() as group:
        group.create_task(stacks.run("a"))
        group.create_task(stacks.run("b"))
        await cluster.has_looked.wait()
        assert stacks.begun == ["a"]
        stacks.end("a")
        await stacks.wait_for("a", "b")
        stacks.end("b")


async def test_nobody_begins_when_the_turns_are_over_and_those_that_run_go_on() -> None:
    turns = Turns(1)
    stacks = Stacks(turns)
    async with giving(turns), asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(stacks.run(name))
        await stacks.wait_for("a")
        turns.end()
        stacks.end("a")
    assert (stacks.begun, stacks.refused) == (["a"], ["b", "c"])


async def test_a_mistake_in_the_search_for_room_reaches_those_that_wait() -> None:
    cluster = Cluster()
    cluster.error = KeyError("items")
    turns = Turns(9, cluster.find)
    stacks = Stacks(turns)
    async with giving(turns):
        running = asyncio.create_task(stacks.run("a"))
        await stacks.wait_for("a")
        with pytest.raises(KeyError):
            await stacks.run("b")
        with pytest.raises(KeyError):
            await stacks.run("c")
        stacks.end("a")
        await running
