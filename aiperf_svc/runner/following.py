"""The watch over a run that has started: what its API says, which processes end, what the user
wants.

Nothing here starts or ends a process, and nothing is known of the run but through its API.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable, RunApi
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import log_tails
from aiperf_svc.runner.display import Display
from aiperf_svc.runner.processes import Process
from aiperf_svc.runner.signals import Interrupts

POLL_S = 1.0
"""Longest time without news of the run."""
RETRY_S = 0.1
LOGS_S = 0.25
"""Seconds between two reads of the logs, if they are shown."""
UNRESPONSIVE_S = 30.0
"""Longest time without a response of the API while its process lives."""
SETTLE_S = 300.0
"""Longest time from the final state to the results, while the records manager responds: when a run
has failed they are made only then, and the lines of a million long streams take a minute."""
STOPPING = "stopping: what was measured is kept; once more to leave at once"


class Outlet(AbstractAsyncContextManager[Any], Protocol):
    """Passes what is known of a run on to others while the run is followed. Nothing of it can fail
    a run."""

    def show(self, status: Status) -> None:
        """Take the newest status."""
        ...

    async def finish(self, results: Results | None) -> None:
        """Take the results, if there are any; nothing follows."""
        ...


class Following:
    """Follows one run until its results are here or it is abandoned."""

    def __init__(
        self,
        client: RunApi,
        *,
        processes: Sequence[Process],
        control: Sequence[Process],
        logs: Path,
        interrupts: Interrupts,
        display: Display,
        show_logs: bool = False,
        is_collected: bool = True,
        unresponsive_s: float = UNRESPONSIVE_S,
        stopping: str = STOPPING,
        replace: Callable[[Process], Process | None] = lambda _process: None,
        outlets: Sequence[Outlet] = (),
    ) -> None:
        self._client = client
        self._processes = processes
        self._control = control
        """Those without which a run cannot go on."""
        self._logs = logs
        self._interrupts = interrupts
        self._display = display
        self._show_logs = show_logs
        self._is_collected = is_collected
        """True if the run's results are at their final place when it is over."""
        self._unresponsive_s = unresponsive_s
        self._stopping = stopping
        """Message printed at the first interrupt."""
        self._replace = replace
        """Starts another process in place of one that has ended; None where nobody waits for it."""
        self._outlets = outlets
        self.status: Status | None = None
        """The last one; None before the first response."""

    @property
    def is_over(self) -> bool:
        """True if the run has reported its end."""
        return self.status is not None and RunState(self.status.state).is_final

    async def run(self) -> Results | None:
        """The summary, when there is one. Ends at the second interrupt too.

        Raises BenchmarkFailed when the run cannot go on.
        """
        async with AsyncExitStack() as open_outlets:
            for outlet in self._outlets:
                await open_outlets.enter_async_context(outlet)
            return await self._run()

    async def _run(self) -> Results | None:
        follow = asyncio.create_task(self._follow(), name="follow")
        watch = asyncio.create_task(self._watch_processes(), name="watch processes")
        obey = asyncio.create_task(self._obey_interrupts(), name="obey interrupts")
        shown = asyncio.create_task(self._copy_logs(), name="copy logs")
        try:
            await asyncio.wait((follow, watch, obey), return_when=asyncio.FIRST_COMPLETED)
            if follow.done():
                return follow.result()
            for task in (watch, obey):
                if task.done():
                    task.result()
            return None
        finally:
            await _cancel(follow, watch, obey, shown)

    async def _follow(self) -> Results | None:
        loop = asyncio.get_running_loop()
        heard_s, settle_by_s = loop.time(), None
        while True:
            after = None if self.status is None else self.status.number
            try:
                self.status = await self._client.status(after=after, timeout_s=POLL_S)
            except ApiUnavailable as error:
                if loop.time() - heard_s > self._unresponsive_s:
                    raise BenchmarkFailed(f"the services do not respond: {error}") from error
                await asyncio.sleep(RETRY_S)
                continue
            heard_s = loop.time()
            self._display.show(self.status)
            for outlet in self._outlets:
                outlet.show(self.status)
            if self.is_over:
                settle_by_s = settle_by_s or heard_s + SETTLE_S
                if self.status.is_settled or heard_s > settle_by_s:
                    break
        results = None
        if self.status.results_ready:
            with suppress(ApiRefused):
                results = await self._client.results()
        if self._is_collected:
            with suppress(ApiUnavailable, ApiRefused):
                await self._client.collected()
        for outlet in self._outlets:
            await outlet.finish(results)
        return results

    async def _watch_processes(self) -> None:
        """Watch the processes; never returns. Raises BenchmarkFailed if a process ends that the run
        needs."""
        watches = [
            asyncio.create_task(self._watch(process), name=f"watch {process.name}")
            for process in self._processes
        ]
        try:
            if watches:
                done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_EXCEPTION)
                for watch in done:
                    watch.result()
            await asyncio.Event().wait()
        finally:
            await _cancel(*watches)

    async def _watch(self, process: Process) -> None:
        code = await process.wait()
        status = self.status
        state = RunState(status.state) if status is not None else RunState.PENDING
        if state.is_final:
            return
        is_first = status is None or status.experiment is None or not status.experiment.ended
        is_starting = state is RunState.PENDING and is_first
        # With 0 it has seen the end of the run before we have.
        if code == 0 and not is_starting:
            return
        if process in self._control or is_starting:
            story = log_tails.last_lines(self._logs, process.name)
            raise BenchmarkFailed(f"{process.name} {process.how_it_ended}\n{story}".rstrip())
        another = self._replace(process)
        follows = (
            "another one takes part in the next trial" if another else "the run goes on without it"
        )
        self._display.note(f"{process.name} {process.how_it_ended}; {follows}")
        if another is not None:
            await self._watch(another)

    async def _copy_logs(self) -> None:
        """Copy new lines of the services' logs to the screen."""
        tails = log_tails.Tails(self._logs)
        while self._show_logs:
            for line in tails.new_lines():
                self._display.note(line)
            await asyncio.sleep(LOGS_S)

    async def _obey_interrupts(self) -> None:
        """The first stops the run, the second ends this."""
        await self._interrupts.reached(1)
        self._display.note(self._stopping)
        cancel = asyncio.create_task(self._cancel_run(), name="cancel the run")
        try:
            await self._interrupts.reached(2)
        finally:
            await _cancel(cancel)

    async def _cancel_run(self) -> None:
        while True:
            try:
                await self._client.cancel("interrupted by the user")
            except (ApiUnavailable, ApiRefused):
                # It is starting, or gone: the others notice which.
                await asyncio.sleep(RETRY_S)
            else:
                return


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
