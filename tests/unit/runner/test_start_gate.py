"""The parts of a round start at the same time, each on its own clock."""

import asyncio
from time import time_ns
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable, RunApi
from aiperf_svc.core.experiments.schedule import AssignStart, Event, Part, Schedule
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.runner.start_gate import LEAD_S, RoundGate, StartTimes, UptimeGate, measure_offset


class Run:
    """A run whose clock is ahead. Each poll returns the next of the test's states: a state, or the
    number of a trial of `total` and its state."""

    def __init__(self, *states: str | tuple[int, str], ahead_ns: int = 0, total: int = 1) -> None:
        self._states = list(states)
        self._ahead_ns = ahead_ns
        self._total = total
        self.broken = 0
        """Number of next calls that fail."""
        self.started: list[int] = []
        self.trials: list[int] = []
        """Trials that were started."""
        self.refused: tuple[int, ...] = ()
        """Trials that are over when they get a start."""
        self.polled, self.was_started = asyncio.Event(), asyncio.Event()
        self.notes: list[str] = []

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
        now = self._states.pop(0)
        trial, state = (1, now) if isinstance(now, str) else now
        return SimpleNamespace(
            state=state, number=1, trial=trial, is_last_trial=trial == self._total
        )

    async def clock(self) -> int:
        self._break()
        return time_ns() + self._ahead_ns

    async def start(self, at_wall_ns: int, *, trial: int) -> None:
        self._break()
        if trial in self.refused:
            raise ApiRefused("the run is processing", status=409)
        self.started.append(at_wall_ns)
        self.trials.append(trial)
        self.was_started.set()


class Round:
    """A round of parts with a common start."""

    def __init__(self, *names: str, lead_s: float = 5.0) -> None:
        self.times = StartTimes(lead_s)
        self.schedule = Schedule([1], names)
        self.schedule.begin()
        self.gates = {n: RoundGate(Part(1, n), self.times, self.report) for n in names}

    def report(self, event: Event) -> None:
        for each in self.schedule.handle(event):
            assert isinstance(each, AssignStart)
            self.times.assign(*each)

    async def open(self, **runs: Run) -> None:
        opening = (self.gates[n].open(run.api, run.notes.append) for n, run in runs.items())
        await asyncio.gather(*opening)


async def test_runs_start_together_by_their_own_clocks() -> None:
    eu, us = Run("pending", "ready"), Run("configuring", "ready", ahead_ns=-40_000_000_000)
    round_ = Round("eu", "us")
    before = time_ns()
    await round_.open(eu=eu, us=us)
    offsets = {name: round_.gates[name].offsets[1] for name in ("eu", "us")}
    (one,), (other,) = eu.started, us.started
    assert one - offsets["eu"].ns == other - offsets["us"].ns > before
    for name, ahead_ns in (("eu", 0), ("us", -40_000_000_000)):
        assert abs(offsets[name].ns - ahead_ns) <= offsets[name].uncertainty_ns
    assert eu.notes[0] == "ready; waiting for the others"


@pytest.mark.parametrize("state", ["cancelled", "failed", "profiling"])
async def test_ended_run_gets_no_start(state: str) -> None:
    run = Run(state)
    await Round("eu").open(eu=run)
    assert run.started == []


async def test_each_trial_has_a_start_that_all_share() -> None:
    eu = Run((1, "ready"), (1, "ready"), (1, "profiling"), (2, "pending"), (2, "ready"), total=2)
    us = Run((1, "configuring"), (1, "ready"), (1, "processing"), (2, "ready"), total=2)
    round_ = Round("eu", "us")
    await round_.open(eu=eu, us=us)
    assert eu.trials == us.trials == [1, 2]
    starts = [
        [at - round_.gates[name].offsets[n].ns for n, at in enumerate(run.started, start=1)]
        for name, run in (("eu", eu), ("us", us))
    ]
    assert starts[0] == starts[1]
    assert starts[0][0] < starts[0][1]
    assert [line.split(";")[0] for line in eu.notes] == ["ready", "starts with the others"]


async def test_trial_failed_in_one_run_starts_elsewhere() -> None:
    eu = Run((1, "ready"), (2, "ready"), (3, "ready"), total=3)
    us = Run((1, "ready"), (2, "configuring"), (2, "processing"), (3, "ready"), total=3)
    await Round("eu", "us").open(eu=eu, us=us)
    assert (eu.trials, us.trials) == ([1, 2, 3], [1, 3])


async def test_trial_failing_while_waiting_is_skipped() -> None:
    eu = Run((1, "ready"), (1, "processing"), (2, "ready"), total=2)
    eu.refused = (1,)
    round_ = Round("eu")
    await round_.open(eu=eu)
    assert eu.trials == [2]
    assert list(round_.gates["eu"].offsets) == [2]


async def test_refused_start_of_waiting_trial_is_an_error() -> None:
    eu = Run((1, "ready"), (1, "ready"), total=2)
    eu.refused = (1,)
    with pytest.raises(ApiRefused):
        await Round("eu").open(eu=eu)


async def test_start_is_resent_until_its_time() -> None:
    run, lost = Run("ready"), Run("ready")
    run.broken, lost.broken = 2, 10**9
    await Round("eu").open(eu=run)
    assert len(run.started) == 1
    with pytest.raises(BenchmarkFailed, match="its start was not set in time: broke off"):
        await Round("us", lead_s=0.0).open(us=lost)


async def test_offset_uses_the_shortest_round_trip() -> None:
    offset = await measure_offset(Run(ahead_ns=7_000_000_000).api)
    assert abs(offset.ns - 7_000_000_000) <= offset.uncertainty_ns


UPTIME_NS = 600 * 10**9


class Visit:
    """A trial whose target has run for some time when the run is ready."""

    def __init__(self, run: Run, *, ran_s: float, ahead_ns: int = 0, first_trial: int = 1) -> None:
        self.run, self.slept_s = run, list[float]()
        self.started_wall_ns = time_ns() + ahead_ns - round(ran_s * 1e9)
        self.gate = UptimeGate(
            UPTIME_NS, self._find_start, first_trial=first_trial, sleep=self._sleep
        )

    async def _find_start(self) -> int:
        return self.started_wall_ns

    async def _sleep(self, time_s: float) -> None:
        self.slept_s.append(time_s)

    async def open(self) -> None:
        await self.gate.open(self.run.api, self.run.notes.append)


async def test_first_trial_starts_at_the_targets_uptime() -> None:
    ahead_ns = -40 * 10**9
    run = Run((1, "ready"), (1, "profiling"), (2, "ready"), ahead_ns=ahead_ns, total=2)
    visit = Visit(run, ran_s=200, ahead_ns=ahead_ns)
    await visit.open()
    first, second = run.started
    assert first == visit.started_wall_ns + UPTIME_NS
    # The second one starts at once.
    assert second <= time_ns() + ahead_ns
    (slept_s,) = visit.slept_s
    assert 0 < slept_s <= 400 - LEAD_S
    (line,) = run.notes
    assert line.endswith("when the target has run for 600 s")


async def test_target_running_too_long_is_an_error() -> None:
    visit = Visit(Run("ready"), ran_s=600 - LEAD_S + 1)
    with pytest.raises(BenchmarkFailed, match=r"uptime is 600 s, and the target has run for"):
        await visit.open()
    assert visit.run.started == []


async def test_later_trial_of_resumed_visit_starts_now() -> None:
    visit = Visit(Run((5, "ready"), total=5), ran_s=9_000, first_trial=4)
    await visit.open()
    assert (visit.run.trials, visit.slept_s) == ([5], [])


async def test_failed_trial_of_a_visit_is_skipped() -> None:
    run = Run((1, "ready"), (1, "processing"), (2, "ready"), total=2)
    run.refused = (1,)
    await Visit(run, ran_s=1).open()
    assert run.trials == [2]
