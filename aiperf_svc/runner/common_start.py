"""The common start of several runs that are held: when each of them is ready or has ended, all that
are left get one time at which their loads start.

Each run has its own clock. Its offset from this machine's is measured with requests: it lies within
half of the shortest round trip of the middle of that request.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from time import time_ns
from typing import NamedTuple

from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable, RunApi
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.protocol.messages import RunState

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
"""Gives a held run its start, and says so. Raises BenchmarkFailed, ApiRefused."""


class Offset(NamedTuple):
    """How far a run's clock is ahead of this machine's."""

    ns: int
    uncertainty_ns: int


class CommonStart:
    """The one start of several runs."""

    def __init__(self, names: Iterable[str], *, lead_s: float = LEAD_S) -> None:
        self._missing = set(names)
        self._lead_ns = round(lead_s * 1e9)
        self._is_given = asyncio.Event()
        self.at_wall_ns = 0
        """The start by this machine's clock; 0 while it is not known."""
        self.offsets: dict[str, Offset] = {}
        """The clocks of the runs that were given the start."""

    def leave(self, name: str) -> None:
        """Take in that a run has ended or is not to be waited for."""
        self._missing.discard(name)
        if not self._missing and not self._is_given.is_set():
            self.at_wall_ns = time_ns() + self._lead_ns
            self._is_given.set()

    async def give(self, name: str, api: RunApi, say: Callable[[str], None]) -> None:
        """Wait until all runs are ready, then tell this one its start. Returns at once if it has
        ended. Raises BenchmarkFailed if it cannot be told in time, ApiRefused."""
        if not await _is_ready(api):
            return
        self.leave(name)
        if self._missing:
            say(f"ready; waits for {', '.join(sorted(self._missing))}")
        await self._is_given.wait()
        while True:
            try:
                offset = await measure_offset(api)
                await api.start(self.at_wall_ns + offset.ns)
            except ApiUnavailable as error:
                if time_ns() > self.at_wall_ns:
                    raise BenchmarkFailed(
                        f"could not be told its start in time: {error}"
                    ) from error
                await asyncio.sleep(RETRY_S)
            else:
                break
        self.offsets[name] = offset
        say(
            f"starts with the others; its clock is {offset.ns / 1e6:+.2f} ms from this machine's, "
            f"± {offset.uncertainty_ns / 1e6:.2f} ms"
        )


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


async def _is_ready(api: RunApi) -> bool:
    """Wait until the run is ready. False if it is beyond that."""
    number: int | None = None
    while True:
        try:
            status = await api.status(after=number, timeout_s=POLL_S)
        except ApiUnavailable:
            await asyncio.sleep(RETRY_S)
            continue
        number = status.number
        state = RunState(status.state)
        if state is RunState.READY:
            return True
        if state not in (RunState.PENDING, RunState.CONFIGURING):
            return False
