"""Carries out the events of a run during its load, and reports them to the run.

    status (start of the load) ──> EventRun of each event ──> adapter ──> server
                                          └── reports ──> records manager, which judges them

The records manager needs the reports for its verdict, so all of them are sent again whenever one
changes. Each trial of an experiment has the same events.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from aiperf_svc.adapters.events.event_run import EventFailed, EventRun, Perform
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.results_api.run_api import ApiRefused, RunApi
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.runner.follower import Follower
from aiperf_svc.runner.start_gate import clock_ahead_ns, retried

POLL_S = 0.05
"""Time between two reads of the status of the follower."""
LATE_S = 5.0
"""Longest delay of an event. A runner that resumes following a load skips older events."""
LAST_REPORT_S = 10.0
"""Longest time for sending the last report to the run."""


class EventWatch:
    """Carries out the events of each trial, while the run is followed."""

    def __init__(self, api: RunApi, config: BenchmarkConfig, perform: Perform) -> None:
        self._api, self._config, self._perform = api, config, perform

    async def __call__(self, follower: Follower) -> None:
        """Carry out the events of each load. Never returns."""
        started_wall_ns = 0
        while True:
            start_wall_ns = _load_start(follower)
            if start_wall_ns and start_wall_ns != started_wall_ns:
                started_wall_ns = start_wall_ns
                await self._run_events(start_wall_ns, follower)
            await asyncio.sleep(POLL_S)

    async def _run_events(self, start_wall_ns: int, follower: Follower) -> None:
        """Carry out the events of the current load. Undoes open events when the load ends, or when
        the run is no longer followed."""
        changed = asyncio.Event()
        ahead_ns = await clock_ahead_ns(self._api)
        runs = [
            EventRun(
                number,
                event,
                seed=self._config.random_seed,
                start_wall_ns=start_wall_ns,
                clock_ahead_ns=ahead_ns,
                changed=changed,
            )
            for number, event in enumerate(self._config.events)
        ]
        try:
            # The events end first, so that their last reports are sent.
            async with Tasks() as sender, Tasks() as events:
                sender.start(self._send_reports(start_wall_ns, runs, changed), "event reports")
                for number, run in enumerate(runs, start=1):
                    events.start(self._carry_out(run, follower), f"event {number}")
                while _load_start(follower) == start_wall_ns:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(POLL_S)
        finally:
            with contextlib.suppress(TimeoutError, ApiRefused):
                async with asyncio.timeout(LAST_REPORT_S):
                    await self._send(start_wall_ns, runs)

    async def _carry_out(self, run: EventRun, follower: Follower) -> None:
        try:
            await run.carry_out(_skip if run.late_s > LATE_S else self._perform)
        finally:
            number, report = run.report.number + 1, run.report
            text = report.problem or f"{report.what}: {report.evidence}"
            follower.display.note(f"event {number} ({run.event.do}): {text}")

    async def _send_reports(
        self, start_wall_ns: int, runs: Sequence[EventRun], changed: asyncio.Event
    ) -> None:
        while True:
            await changed.wait()
            changed.clear()
            with contextlib.suppress(ApiRefused):
                await self._send(start_wall_ns, runs)

    async def _send(self, start_wall_ns: int, runs: Sequence[EventRun]) -> None:
        await retried(
            lambda: self._api.set_events(start_wall_ns, tuple(run.report for run in runs))
        )


async def _skip(run: EventRun) -> None:
    """Skip an event that was due before this runner: an earlier one did it, or was killed."""
    raise EventFailed(
        f"skipped: it was due {run.late_s:.0f} s before this runner began to follow the load"
    )


def _load_start(follower: Follower) -> int:
    """Return the start of the current load, by the clock of the run; 0 if there is none."""
    return follower.status.load_start_wall_ns if follower.status is not None else 0
