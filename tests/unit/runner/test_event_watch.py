"""When the runner carries out events, and its reports of them."""

import asyncio
from collections.abc import Callable
from time import time_ns
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.events.event_run import EventFailed, EventRun, Perform
from aiperf_svc.adapters.results_api.run_api import ApiUnavailable, RunApi
from aiperf_svc.adapters.terminal.screens import Silent
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.events import Event
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.runner.events import EventWatch
from aiperf_svc.runner.follower import Follower

KILL = Event.model_validate({"at": 0, "do": "kill"})
LATER = Event.model_validate({"at": "1h", "do": "kill"})


class Api:
    """A run that accepts reports. The first call fails."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, tuple[EventReport, ...]]] = []
        self._reported = asyncio.Event()
        self._has_failed = False

    async def clock(self) -> int:
        return time_ns()

    async def set_events(self, start_wall_ns: int, reports: tuple[EventReport, ...]) -> None:
        if not self._has_failed:
            self._has_failed = True
            raise ApiUnavailable("not yet")
        self.reports.append((start_wall_ns, reports))
        self._reported.set()

    @property
    def is_over(self) -> bool:
        """Return whether the last reports have been sent."""
        return bool(self.reports) and all(each.is_over for each in self.reports[-1][1])

    async def wait_for(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_true():
                self._reported.clear()
                await self._reported.wait()


class Load:
    """A load that the test starts and ends."""

    def __init__(self, *events: Event, perform: Perform) -> None:
        self.api = Api()
        self.follower = cast(Follower, SimpleNamespace(status=None, display=Silent()))
        config = cast(BenchmarkConfig, SimpleNamespace(events=events, random_seed=1))
        watch = EventWatch(cast(RunApi, self.api), config, perform)
        self.task = asyncio.create_task(watch(self.follower))

    def set_start(self, start_wall_ns: int) -> None:
        self.follower.status = cast(Any, SimpleNamespace(load_start_wall_ns=start_wall_ns))

    async def last_reports(self) -> tuple[int, tuple[EventReport, ...]]:
        """Return the final reports."""
        await self.api.wait_for(lambda: self.api.is_over)
        return self.api.reports[-1]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def do_it(run: EventRun) -> None:
    run.begin("process 7 (server)")
    run.verify("gone")


async def test_event_is_reported_with_load_start() -> None:
    load, start = Load(KILL, perform=do_it), time_ns()
    load.set_start(start)
    of, (report,) = await load.last_reports()
    assert of == start
    assert (report.what, report.evidence, report.problem) == ("process 7 (server)", "gone", "")
    assert report.begin_wall_ns >= start - 10**9
    await load.stop()


async def test_each_trial_has_the_events_again() -> None:
    load, first = Load(KILL, perform=do_it), time_ns()
    load.set_start(first)
    assert (await load.last_reports())[0] == first
    load.set_start(first + 1)
    await load.api.wait_for(lambda: load.api.is_over and load.api.reports[-1][0] == first + 1)
    assert load.api.reports[-1][1][0].evidence == "gone"
    await load.stop()


async def test_event_of_an_earlier_runner_is_skipped() -> None:
    done = list[EventRun]()

    async def perform(run: EventRun) -> None:
        done.append(run)

    load = Load(KILL, perform=perform)
    load.set_start(time_ns() - 3_600 * 10**9)
    _, (report,) = await load.last_reports()
    assert "before this runner began to follow the load" in report.problem
    assert (report.begin_wall_ns, done) == (0, [])
    await load.stop()


async def test_unexpected_error_is_a_problem() -> None:
    async def perform(run: EventRun) -> None:
        await do_it(run)
        raise KeyError("spec")

    load = Load(KILL, perform=perform)
    load.set_start(time_ns())
    _, (report,) = await load.last_reports()
    assert (report.evidence, report.problem) == ("gone", "unexpected KeyError: 'spec'")
    await load.stop()


async def test_event_after_the_load_is_a_problem() -> None:
    load = Load(KILL, LATER, perform=do_it)
    load.set_start(time_ns())
    await load.api.wait_for(lambda: bool(load.api.reports))
    load.set_start(0)
    _, (first, second) = await load.last_reports()
    assert first.problem == ""
    assert second.problem == "the load ended before it"
    await load.stop()


async def test_running_event_is_undone_when_the_runner_stops() -> None:
    began, undone = asyncio.Event(), asyncio.Event()

    async def stall(run: EventRun) -> None:
        run.begin("process 7")
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            undone.set()

    load = Load(KILL, perform=stall)
    load.set_start(time_ns())
    await began.wait()
    await load.stop()
    assert undone.is_set()
    _, (report,) = await load.last_reports()
    assert report.is_over


@pytest.mark.parametrize("fails_after_begin", [True, False])
async def test_failure_is_reported_and_ends_no_run(fails_after_begin: bool) -> None:
    async def fail(run: EventRun) -> None:
        if fails_after_begin:
            run.begin("process 7")
        raise EventFailed("no such process: 7")

    load = Load(KILL, perform=fail)
    load.set_start(time_ns())
    _, (report,) = await load.last_reports()
    assert report.problem == "no such process: 7"
    assert bool(report.begin_wall_ns) is fails_after_begin
    assert not load.task.done()
    await load.stop()
