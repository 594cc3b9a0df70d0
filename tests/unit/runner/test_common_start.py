"""Several held runs start at one time: who is waited for, and by which clock each is told."""

import asyncio
from time import time_ns
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.results_api.run_api import ApiUnavailable, RunApi
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.runner.common_start import CommonStart, measure_offset


class Run:
    """A run whose clock is ahead, and that is in the states that a test names, one at a poll."""

    def __init__(self, *states: str, ahead_ns: int = 0) -> None:
        self._states = list(states)
        self._ahead_ns = ahead_ns
        self.broken = 0
        """Number of the next calls that fail."""
        self.started: list[int] = []
        self.polled, self.was_started = asyncio.Event(), asyncio.Event()
        self.said: list[str] = []

    @property
    def api(self) -> RunApi:
        return cast("RunApi", self)

    def _break(self) -> None:
        if self.broken:
            self.broken -= 1
            raise ApiUnavailable("broke off")

    async def status(self, **_: Any) -> Any:
        self.polled.set()
        if not self._states:
            await asyncio.Event().wait()
        return SimpleNamespace(state=self._states.pop(0), number=1)

    async def clock(self) -> int:
        self._break()
        return time_ns() + self._ahead_ns

    async def start(self, at_wall_ns: int) -> None:
        self._break()
        self.started.append(at_wall_ns)
        self.was_started.set()


async def give(start: CommonStart, **runs: Run) -> None:
    await asyncio.gather(
        *(start.give(name, run.api, run.said.append) for name, run in runs.items())
    )


async def test_all_get_one_time_each_by_its_own_clock() -> None:
    eu, us = Run("pending", "ready"), Run("configuring", "ready", ahead_ns=-40_000_000_000)
    start = CommonStart(["eu", "us"])
    before = time_ns()
    await give(start, eu=eu, us=us)
    assert start.at_wall_ns > before
    for run, ahead_ns, name in ((eu, 0, "eu"), (us, -40_000_000_000, "us")):
        (told,) = run.started
        uncertainty_ns = start.offsets[name].uncertainty_ns
        assert abs(told - start.at_wall_ns - ahead_ns) <= uncertainty_ns
    assert eu.said[0] == "ready; waits for us"


async def test_nobody_starts_before_the_last_is_ready_and_one_that_fails_is_not_waited() -> None:
    eu, us = Run("ready"), Run("pending")
    start = CommonStart(["eu", "us", "asia"])
    giving = asyncio.create_task(give(start, eu=eu, us=us))
    await us.polled.wait()
    start.leave("asia")
    assert (eu.started, start.at_wall_ns) == ([], 0)
    start.leave("us")
    await eu.was_started.wait()
    assert us.started == []
    giving.cancel()
    await asyncio.gather(giving, return_exceptions=True)


@pytest.mark.parametrize("state", ["cancelled", "failed", "profiling"])
async def test_a_run_that_is_over_is_told_nothing(state: str) -> None:
    run = Run(state)
    await CommonStart(["eu"]).give("eu", run.api, run.said.append)
    assert run.started == []


async def test_a_start_is_told_again_until_its_time_has_passed() -> None:
    run, lost = Run("ready"), Run("ready")
    run.broken, lost.broken = 2, 10**9
    start = CommonStart(["eu"])
    await start.give("eu", run.api, run.said.append)
    assert len(run.started) == 1
    late = CommonStart(["us"], lead_s=0.0)
    with pytest.raises(BenchmarkFailed, match="could not be told its start in time: broke off"):
        await late.give("us", lost.api, lost.said.append)


async def test_the_offset_is_that_of_the_shortest_round_trip() -> None:
    offset = await measure_offset(Run(ahead_ns=7_000_000_000).api)
    assert abs(offset.ns - 7_000_000_000) <= offset.uncertainty_ns
