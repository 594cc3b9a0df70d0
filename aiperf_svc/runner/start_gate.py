"""Starts the loads of held runs.

The loads of a round start together when `core/experiments/schedule.py` finds all parts ready. Each
part has its own clock. Requests measure its offset from this machine's clock, with an error of at
most half of the shortest round trip. The visits of an experiment in blocks start when their targets
reach the same uptime, by the clock of the cluster.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import NamedTuple, TypeVar

from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable, RunApi
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.experiments.schedule import Event, Part, PartAwaited, PartReady
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.protocol.run_states import RunState

PROBES = 8
"""Number of requests for the time. The one with the shortest round trip is used."""
PROBES_S = 3.0
"""Time limit for all of these requests."""
LEAD_S = 5.0
"""Time between the moment when all parts are ready and the start. In this time the clocks are
measured, and the start time reaches every service of each part."""
POLL_S = 1.0
RETRY_S = 0.2
_T = TypeVar("_T")


class Offset(NamedTuple):
    """How far a run's clock is ahead of this machine's."""

    ns: int
    uncertainty_ns: int


class StartTimes:
    """The start time of each trial of a round, which a part can await."""

    def __init__(self, lead_s: float = LEAD_S) -> None:
        self._lead_ns = round(lead_s * 1e9)
        self._starts = defaultdict[tuple[int, int], asyncio.Future[int]](asyncio.Future)

    def assign(self, round_: int, trial: int) -> None:
        """Set the start of a trial of a round."""
        self.of(round_, trial).set_result(time_ns() + self._lead_ns)

    def of(self, round_: int, trial: int) -> "asyncio.Future[int]":
        """Return the start of a trial, by this machine's clock in ns."""
        return self._starts[round_, trial]


class RoundGate:
    """Starts the trials of one part together with those of the other parts of its round."""

    def __init__(self, part: Part, times: StartTimes, report: Callable[[Event], None]) -> None:
        """`report` receives the events of this part."""
        self._part, self._times, self._report = part, times, report
        self.offsets: dict[int, Offset] = {}
        """The clock offset of the run when the start of each trial was set, by trial number."""

    async def open(self, api: RunApi, note: Callable[[str], None]) -> None:
        """Set the start of each trial of the run as soon as the other parts are ready for the trial
        or have passed it. Returns when no trial is left. Raises BenchmarkFailed if a start cannot
        be set in time, ApiRefused."""
        trial = 0
        while (ready := await _next_ready(api, after=trial, await_trial=self._await)) is not None:
            is_first, trial = not trial, ready.trial
            # A line for each trial would hide the other lines.
            await self._start(trial, api, note if is_first else lambda _line: None)
            if ready.is_last_trial:
                return

    async def _start(self, trial: int, api: RunApi, note: Callable[[str], None]) -> None:
        self._report(PartReady(self._part, trial))
        start = self._times.of(self._part.round, trial)
        if not start.done():
            note("ready; waiting for the others")
        at_wall_ns = await asyncio.shield(start)
        while True:
            try:
                offset = await measure_offset(api)
                await api.start(at_wall_ns + offset.ns, trial=trial)
            except ApiUnavailable as error:
                if time_ns() > at_wall_ns:
                    raise BenchmarkFailed(f"its start was not set in time: {error}") from error
                await asyncio.sleep(RETRY_S)
            except ApiRefused:
                if await _is_waiting(api, trial):
                    raise
                return  # The trial has failed since it was ready.
            else:
                break
        self.offsets[trial] = offset
        note(
            f"starts with the others; its clock is {offset.ns / 1e6:+.2f} ms from this machine's, "
            f"± {offset.uncertainty_ns / 1e6:.2f} ms"
        )

    def _await(self, trial: int) -> None:
        self._report(PartAwaited(self._part, trial))


@dataclass(frozen=True)
class UptimeGate:
    """Starts the first trial of a visit when its target reaches an uptime, and later trials as soon
    as they are ready."""

    uptime_ns: int
    find_start: Callable[[], Awaitable[int]]
    """Returns when the target started, in ns by the clock of the cluster. Raises BenchmarkFailed if
    that is unknown."""
    first_trial: int
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def open(self, api: RunApi, note: Callable[[str], None]) -> None:
        """Start each trial of the run. Raises BenchmarkFailed if the target has run for too long,
        ApiRefused."""
        trial = 0
        while (ready := await _next_ready(api, after=trial)) is not None:
            trial = ready.trial
            if trial == self.first_trial:
                at_wall_ns = await self._wait(api, note)
            else:
                at_wall_ns = await retried(api.clock)
            try:
                await retried(partial(api.start, at_wall_ns, trial=trial))
            except ApiRefused:
                if await _is_waiting(api, trial):
                    raise
            if ready.is_last_trial:
                return

    async def _wait(self, api: RunApi, note: Callable[[str], None]) -> int:
        """Wait until shortly before the target reaches the uptime. Returns when it does so."""
        started_wall_ns, now_wall_ns = await self.find_start(), await retried(api.clock)
        at_wall_ns, uptime_s = started_wall_ns + self.uptime_ns, self.uptime_ns / 1e9
        left_s = (at_wall_ns - now_wall_ns) / 1e9
        if left_s < LEAD_S:
            raise BenchmarkFailed(
                f"experiment.blocks.uptime is {uptime_s:g} s, and the target has run for "
                f"{uptime_s - left_s:.0f} s when the services are ready, which need {LEAD_S:g} s "
                "more: set it to more than the longest start takes"
            )
        note(
            f"ready; the load begins in {left_s:.0f} s, when the target has run for {uptime_s:g} s"
        )
        await self.sleep(left_s - LEAD_S)
        return at_wall_ns


StartGate = RoundGate | UptimeGate
"""Starts a held run, or each of its trials, at a common time."""


async def _next_ready(
    api: RunApi, *, after: int, await_trial: Callable[[int], None] = lambda _trial: None
) -> Status | None:
    """Wait until a run is ready for a trial after `after`; None if none will come. At each poll,
    `await_trial` receives the first trial for which the run may still become ready."""
    number: int | None = None
    while True:
        status = await retried(partial(api.status, after=number, timeout_s=POLL_S))
        number, state = status.number, RunState(status.state)
        is_early = state in (RunState.PENDING, RunState.CONFIGURING)
        if not state.is_final:
            await_trial(status.trial if is_early else status.trial + 1)
        if state is RunState.READY and status.trial > after:
            return status
        if state.is_final or (not is_early and status.is_last_trial):
            return None
        if not is_early:
            await asyncio.sleep(RETRY_S)


async def measure_offset(api: RunApi) -> Offset:
    """Measure how far the clock of a run is ahead. Raises ApiUnavailable."""
    probes: list[Offset] = []
    give_up_wall_ns = (after := time_ns()) + round(PROBES_S * 1e9)
    while not probes or (len(probes) < PROBES and after <= give_up_wall_ns):
        before, clock = time_ns(), await api.clock()
        after = time_ns()
        probes.append(Offset(clock - (before + after) // 2, (after - before) // 2))
    return min(probes, key=lambda probe: probe.uncertainty_ns)


async def clock_ahead_ns(api: RunApi) -> int:
    """Return how far the clock of a run is ahead, as soon as the run responds."""
    return (await retried(partial(measure_offset, api))).ns


async def retried(request: Callable[[], Awaitable[_T]]) -> _T:
    """Return the response to a request as soon as the run responds. Raises ApiRefused."""
    while True:
        try:
            return await request()
        except ApiUnavailable:
            await asyncio.sleep(RETRY_S)


async def _is_waiting(api: RunApi, trial: int) -> bool:
    """Return whether a trial waits for its start."""
    status = await retried(api.status)
    return status.state == RunState.READY and status.trial == trial
