"""Carries out one event: its timing and its report."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic, time_ns
from typing import TypeVar

from msgspec.structs import replace

from aiperf_svc.config.events import Event
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.domain.errors import EnvironmentProblem, error_text

T = TypeVar("T")
PROOF_S = 10.0
"""Longest time from an event to the proof that it happened."""
POLL_S = 0.05
"""Interval between checks for the proof."""
AHEAD_S = 2.0
"""Time before an event at which an adapter starts to look for the affected pods or processes."""


class EventFailed(EnvironmentProblem):
    """Raised when an event cannot be done, verified or undone, with the reason."""


class EventRun:
    """Carries out one event. A `Perform` function of an adapter affects the server."""

    def __init__(
        self,
        number: int,
        event: Event,
        *,
        seed: int = 0,
        start_wall_ns: int = 0,
        clock_ahead_ns: int = 0,
        changed: asyncio.Event,
    ) -> None:
        """`start_wall_ns` is the start of the load by the run's clock, which is `clock_ahead_ns`
        ahead of this machine's clock. `changed` is set when the report changes."""
        self.event, self.report = event, EventReport(number=number)
        self._random = random.Random(f"{seed}/{number}")
        self._ahead_ns, self._changed = clock_ahead_ns, changed
        self._due_wall_ns = start_wall_ns - clock_ahead_ns + event.at
        self._until_mono_s = 0.0

    @property
    def late_s(self) -> float:
        """Seconds since its due time; negative before it."""
        return (time_ns() - self._due_wall_ns) / 1e9

    def pick(self, found: Sequence[T]) -> list[T]:
        """Return the targets of the event: all, or one chosen at random from the seed."""
        return list(found) if self.event.pick == "all" else [self._random.choice(found)]

    async def until_due(self) -> None:
        """Wait until the event is due. Its targets are found before."""
        await asyncio.sleep(max(0.0, -self.late_s))

    def begin(self, subject: str) -> None:
        """Record that the event is done now."""
        self._until_mono_s = monotonic() + (self.event.duration or 0) / 1e9
        self._report(what=subject, begin_wall_ns=time_ns() + self._ahead_ns)

    def verify(self, evidence: str) -> None:
        """Record a proof that the event happened or was undone."""
        self._report(evidence="; ".join(filter(None, (self.report.evidence, evidence))))

    def end(self) -> None:
        """Record that the event is undone now."""
        self._report(end_wall_ns=time_ns() + self._ahead_ns)

    async def hold(self) -> None:
        """Wait until the event ends."""
        await asyncio.sleep(max(0.0, self._until_mono_s - monotonic()))

    async def hold_to_end(self) -> None:
        """Wait until the event ends or this task is cancelled, and record the undo."""
        try:
            await self.hold()
        finally:
            self.end()

    async def carry_out(self, perform: "Perform") -> None:
        """Do, verify and undo the event. After an error, the report is incomplete and names it."""
        try:
            await asyncio.sleep(max(0.0, -self.late_s - AHEAD_S))
            await perform(self)
        except Exception as error:
            self._report(problem=error_text(error))
        except asyncio.CancelledError:
            if not self.report.begin_wall_ns:
                self._report(problem="the load ended before it")
            raise
        finally:
            self._report(is_over=True)

    def _report(self, **fields: str | int | bool) -> None:
        self.report = replace(self.report, **fields)
        self._changed.set()


Perform = Callable[[EventRun], Awaitable[None]]
"""Does an event, verifies it, and undoes it in all cases. Raises EnvironmentProblem."""


async def wait_for_proof(
    check: Callable[[], Awaitable[T | None]], missing: str, within_s: float
) -> T:
    """Repeat a check until it returns a proof. Raises EventFailed with `missing` on a timeout."""
    give_up_mono_s = monotonic() + within_s
    while (found := await check()) is None:
        if monotonic() > give_up_mono_s:
            raise EventFailed(f"not verified within {within_s:g} s: {missing}")
        await asyncio.sleep(POLL_S)
    return found
