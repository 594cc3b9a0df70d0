"""The common start of several runs that are held: when each of them is ready or has ended, all that
are left get one time at which their loads start. Runs of the same experiment do so at each trial.

Each run has its own clock. Its offset from this machine's is measured with requests: it lies within
half of the shortest round trip of the middle of that request.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from time import time_ns
from typing import NamedTuple

from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable, RunApi
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.protocol.run_states import RunState

PROBES = 8
"""Requests for the time; the one with the shortest round trip counts."""
PROBES_S = 3.0
"""Longest time for all of them."""
LEAD_S = 5.0
"""Time from the moment at which all are ready to the start: the clocks are measured in it, and the
start reaches every service of each run."""
POLL_S = 1.0
RETRY_S = 0.2


GiveStart = Callable[[RunApi, Callable[[str], None]], Awaitable[None]]
"""Gives a held run its start, or each trial of it, and says so. Raises BenchmarkFailed,
ApiRefused."""


class Offset(NamedTuple):
    """How far a run's clock is ahead of this machine's."""

    ns: int
    uncertainty_ns: int


class _Start:
    """The one start of a trial."""

    def __init__(self) -> None:
        self.at_wall_ns = 0
        self.is_known = asyncio.Event()


class CommonStart:
    """The common start of each trial of several runs. A run without an experiment has one trial,
    number 1."""

    def __init__(self, names: Iterable[str], *, lead_s: float = LEAD_S) -> None:
        self._next = dict.fromkeys(names, 1)
        """First trial at which each run is still waited for."""
        self._lead_ns = round(lead_s * 1e9)
        self._starts: defaultdict[int, _Start] = defaultdict(_Start)
        """By number of the trial, those for which a run waits or has waited."""
        self.offsets: defaultdict[str, dict[int, Offset]] = defaultdict(dict)
        """The clocks of the runs when they were given the start of a trial, by its number."""

    def leave(self, name: str) -> None:
        """Take in that a run has ended or is not to be waited for."""
        self._next.pop(name, None)
        self._give_known()

    async def give(self, name: str, api: RunApi, say: Callable[[str], None]) -> None:
        """Tell a run the start of each of its trials, as soon as all other runs are ready for the
        trial too, or are beyond it. Returns when no trial is left. Raises BenchmarkFailed if it
        cannot be told in time, ApiRefused."""
        trial = 0
        while (ready := await self._ready(name, api, after=trial)) is not None:
            is_first, trial = not trial, ready.trial
            # A line for each trial would hide what else is said.
            await self._give(name, trial, api, say if is_first else lambda _line: None)
            if ready.is_last_trial:
                return

    async def _give(self, name: str, trial: int, api: RunApi, say: Callable[[str], None]) -> None:
        missing = sorted(each for each, place in self._next.items() if place <= trial)
        if missing:
            say(f"ready; waits for {', '.join(missing)}")
        start = self._starts[trial]
        self._give_known()
        await start.is_known.wait()
        while True:
            try:
                offset = await measure_offset(api)
                await api.start(start.at_wall_ns + offset.ns, trial=trial)
            except ApiUnavailable as error:
                if time_ns() > start.at_wall_ns:
                    raise BenchmarkFailed(
                        f"could not be told its start in time: {error}"
                    ) from error
                await asyncio.sleep(RETRY_S)
            except ApiRefused:
                if await _waits(api, trial):
                    raise
                return  # The trial has failed since it was ready.
            else:
                break
        self.offsets[name][trial] = offset
        say(
            f"starts with the others; its clock is {offset.ns / 1e6:+.2f} ms from this machine's, "
            f"± {offset.uncertainty_ns / 1e6:.2f} ms"
        )

    async def _ready(self, name: str, api: RunApi, *, after: int) -> Status | None:
        """Wait until the run is ready for a trial after that one; None if it will not be."""
        number: int | None = None
        while True:
            try:
                status = await api.status(after=number, timeout_s=POLL_S)
            except ApiUnavailable:
                await asyncio.sleep(RETRY_S)
                continue
            number, state = status.number, RunState(status.state)
            is_early = state in (RunState.PENDING, RunState.CONFIGURING)
            if name in self._next and not state.is_final:
                self._next[name] = status.trial if is_early else status.trial + 1
                self._give_known()
            if state is RunState.READY and status.trial > after:
                return status
            if state.is_final or (not is_early and status.is_last_trial):
                return None
            if not is_early:
                await asyncio.sleep(RETRY_S)

    def _give_known(self) -> None:
        """Set the time of each start for which no run is missing."""
        first = min(self._next.values(), default=None)
        for trial, start in self._starts.items():
            if not start.at_wall_ns and (first is None or first > trial):
                start.at_wall_ns = time_ns() + self._lead_ns
                start.is_known.set()


@asynccontextmanager
async def given(
    give_start: GiveStart | None, api: RunApi, say: Callable[[str], None]
) -> AsyncIterator[list[BenchmarkFailed]]:
    """Have a held run started while the context is open. A run that cannot be is stopped, and the
    list then holds the reason."""
    failures: list[BenchmarkFailed] = []

    async def start() -> None:
        if give_start is None:
            return
        try:
            await give_start(api, say)
        except (BenchmarkFailed, ApiRefused) as error:
            failures.append(BenchmarkFailed(str(error)))
            say(str(error))
            await cancel(api, "no start")

    starting = asyncio.create_task(start(), name="start")
    try:
        yield failures
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def cancel(api: RunApi, reason: str) -> None:
    """Stop a run, as soon as it can be told so."""
    while True:
        try:
            await api.cancel(reason)
        except (ApiUnavailable, ApiRefused):
            await asyncio.sleep(RETRY_S)
        else:
            return


async def measure_offset(api: RunApi) -> Offset:
    """Measure how far the clock of a run is ahead. Raises ApiUnavailable."""
    best: Offset | None = None
    give_up_wall_ns = time_ns() + round(PROBES_S * 1e9)
    for _ in range(PROBES):
        before = time_ns()
        there = await api.clock()
        after = time_ns()
        probe = Offset(there - (before + after) // 2, (after - before) // 2)
        if best is None or probe.uncertainty_ns < best.uncertainty_ns:
            best = probe
        if after > give_up_wall_ns:
            break
    assert best is not None
    return best


async def _waits(api: RunApi, trial: int) -> bool:
    """Return whether a trial waits for its start."""
    while True:
        try:
            status = await api.status()
        except ApiUnavailable:
            await asyncio.sleep(RETRY_S)
        else:
            return status.state == RunState.READY and status.trial == trial
