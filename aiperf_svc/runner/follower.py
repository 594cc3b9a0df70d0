"""Follows a run that has started until its results are ready: status, losses, interrupts, limits.

The follower uses only the API of the run. `process_placement.py` watches the processes of a run,
and `stack/measure.py` its pods and its Lease.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Protocol

from aiperf_svc import __version__
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable, RunApi
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.terminal.screens import Display
from aiperf_svc.domain.errors import AiperfError, BenchmarkFailed
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.start_gate import StartGate

POLL_S = 1.0
"""Longest wait for a change of the status."""
RETRY_S = 0.1
UNRESPONSIVE_S = 30.0
"""Longest time without a response of the API of a run whose processes are watched."""
ATTEMPT_S = 15.0
"""Longest part of UNRESPONSIVE_S that one request counts for. A request takes longer only if this
process was stopped, for example by Ctrl-Z, and could not receive a response."""
SETTLE_S = 300.0
"""Longest time from the final state to the results, while the records manager responds. A failed
run writes its results after its final state, and a million long streams take a minute."""
STOPPING = "Stopping. Results so far are kept. Press Ctrl-C again to exit immediately."


class Outlet(AbstractAsyncContextManager[Any], Protocol):
    """Forwards the metrics of a run while the run is followed. Its errors never fail the run."""

    def show(self, status: Status) -> None:
        """Forward the newest status."""
        ...

    async def finish(self, results: Results | None) -> None:
        """Forward the results, if there are any. This is the last call."""
        ...


Watch = Callable[["Follower"], Coroutine[Any, Any, None]]
"""Watches something that the run needs. Never returns; raises AiperfError when the run cannot
continue."""


class Follower:
    """Follows one run until its results are ready or it is abandoned."""

    def __init__(
        self,
        api: RunApi,
        *,
        interrupts: Interrupts,
        display: Display,
        watches: Sequence[Watch] = (),
        gate: StartGate | None = None,
        outlets: Sequence[Outlet] = (),
        is_collected: bool = True,
        unresponsive_s: float = UNRESPONSIVE_S,
        stopping: str = STOPPING,
        deadline_mono_s: float | None = None,
    ) -> None:
        """A held run needs `gate`. `is_collected`: the results are in their final folder when the
        run is over. `stopping` is printed at the first interrupt. After `deadline_mono_s` the run
        is stopped as by an interrupt."""
        self._api, self._interrupts, self.display = api, interrupts, display
        self._watches, self._gate, self._outlets = watches, gate, outlets
        self._is_collected, self._unresponsive_s = is_collected, unresponsive_s
        self._stopping, self._deadline_mono_s = stopping, deadline_mono_s
        self.status: Status | None = None
        """The last status; None before the first response."""
        self.failure: AiperfError | None = None
        """Reason why there may be no results, or incomplete ones, although the run ended."""
        self.is_out_of_time = False
        """Whether the deadline has ended the run."""

    @property
    def is_over(self) -> bool:
        """True if the run has reported its end."""
        return self.status is not None and RunState(self.status.state).is_final

    async def run(self) -> Results | None:
        """Follow the run and return its results, if there are any. The second interrupt ends this.

        Raises AiperfError if the run cannot continue.
        """
        async with AsyncExitStack() as open_outlets:
            for outlet in self._outlets:
                await open_outlets.enter_async_context(outlet)
            return await self._run()

    async def _run(self) -> Results | None:
        async with Tasks() as others, Tasks() as tasks:
            follow = tasks.start(self._follow(), "follow")
            ends = [tasks.start(watch(self), "watch") for watch in self._watches]
            ends.append(tasks.start(self._handle_interrupts(), "handle interrupts"))
            others.start(self._open_gate(), "start")
            if self._deadline_mono_s is not None:
                others.start(self._stop_at_deadline(), "deadline")
            await tasks.first()
            lost = [each for each in ends if each.done() and each.exception() is not None]
            if lost and not (follow.done() and follow.exception() is None):
                lost[0].result()
            return follow.result() if follow.done() else None

    async def _follow(self) -> Results | None:
        loop = asyncio.get_running_loop()
        silent_s, settle_by_s = 0.0, None
        while True:
            after = None if self.status is None else self.status.number
            request_s = loop.time()
            try:
                self.status = await self._api.status(after=after, timeout_s=POLL_S)
            except ApiUnavailable as error:
                silent_s += min(loop.time() - request_s + RETRY_S, ATTEMPT_S)
                if silent_s > self._unresponsive_s:
                    raise BenchmarkFailed(f"the services do not respond: {error}") from error
                await asyncio.sleep(RETRY_S)
                continue
            response_s, silent_s = loop.time(), 0.0
            self.display.show(self.status)
            for outlet in self._outlets:
                outlet.show(self.status)
            if self.is_over:
                settle_by_s = settle_by_s or response_s + SETTLE_S
                if self.status.is_settled or response_s > settle_by_s:
                    break
        results = None
        if self.status.results_ready:
            with suppress(ApiRefused):
                results = await self._api.results()
        if self._is_collected:
            with suppress(ApiUnavailable, ApiRefused):
                await self._api.collected()
        for outlet in self._outlets:
            await outlet.finish(results)
        return results

    async def _open_gate(self) -> None:
        """Start a held run. A run that cannot be started is stopped."""
        if self._gate is None:
            return
        try:
            await self._gate.open(self._api, self.display.note)
        except (BenchmarkFailed, ApiRefused) as error:
            self.failure = self.failure or BenchmarkFailed(str(error))
            self.display.note(str(error))
            await self._cancel_run("no start")

    async def _stop_at_deadline(self) -> None:
        assert self._deadline_mono_s is not None
        await asyncio.sleep(max(0.0, self._deadline_mono_s - time.monotonic()))
        self.is_out_of_time = True
        self.failure = BenchmarkFailed("--timeout: the run was stopped at the time limit")
        await self._cancel_run("--timeout")

    async def _handle_interrupts(self) -> None:
        """Stop the run at the first interrupt, and return at the second."""
        await self._interrupts.reached(1)
        self.display.note(self._stopping)
        async with Tasks() as tasks:
            tasks.start(self._cancel_run("interrupted by the user"), "cancel the run")
            await self._interrupts.reached(2)

    async def _cancel_run(self, reason: str) -> None:
        """Stop the run as soon as it responds. It does not during its start or after its end."""
        while True:
            with suppress(ApiUnavailable, ApiRefused):
                await self._api.cancel(reason)
                return
            await asyncio.sleep(RETRY_S)


def make_outlets(
    options: RunOptions, *, run_id: str, name: str, display: Display
) -> tuple[Outlet, ...]:
    """Return the outlets for the metrics of a run. Their problems go to the display."""
    outlets: list[Outlet] = []
    if options.otlp is not None:
        # HTTP libraries are slow to import.
        from aiperf_svc.adapters.telemetry.otlp import OtlpSender

        origin = {
            "service.name": "aiperf-svc",
            "service.version": __version__,
            "service.instance.id": run_id,
            "aiperf.benchmark": name,
        }
        outlets.append(
            OtlpSender(options.otlp.url, options.otlp.headers, origin, note=display.note)
        )
    if options.metrics_address is not None:
        from aiperf_svc.adapters.telemetry.metrics_page import MetricsPage

        outlets.append(MetricsPage(*options.metrics_address, note=display.note))
    return tuple(outlets)
