"""The base of both records managers: it serves the results API until the run ends."""

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from aiperf_svc.adapters.exports.manifest import Manifest
from aiperf_svc.adapters.messaging.bus import UP, Bus
from aiperf_svc.adapters.results_api.run_api import RunnerMessage, Start
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.protocol.messages.events import CancelRequested, StartRequested
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, is_set_within, mono_ns
from aiperf_svc.services.base_progress import BaseProgress
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.serving import Serving, serve_results

ProgressT = TypeVar("ProgressT", bound=BaseProgress)
POLL_S = 0.5
"""Longest interval between checks for missing records."""


class ResultsService(BaseService, ABC, Generic[ProgressT]):
    """Serves status, summary and files of the run."""

    service = Service.RECORDS_MANAGER
    is_control: ClassVar[bool] = True
    stays_after_end: ClassVar[bool] = True
    progress: ProgressT

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self.work = {
            RunState.DRAINING: self._drain,
            RunState.PROCESSING: self._process,
            RunState.DONE: self._end,
            RunState.CANCELLED: self._end,
            RunState.FAILED: self._end,
        }
        self.result: RunResult | None = None
        self._api: Serving | None = None
        self._cancel_reason = ""
        self._assigned_start_wall_ns = 0
        self._finding: Finding | None = None
        self._arrived = asyncio.Event()
        self._last_arrival_mono_ns = mono_ns()
        self.experiment = context.experiment.results if context.experiment is not None else None

    async def run(self) -> None:
        # Started first, so the status is served even if some services never register.
        if self.experiment is None:
            self._api = await serve_results(self, self.context)
        else:
            await self.experiment.set_results(self)
        await super().run()

    @abstractmethod
    async def _drain(self) -> None:
        """Wait until all records have arrived or are lost."""

    @abstractmethod
    async def _process(self) -> None:
        """Compute the results and write their files."""

    @property
    @abstractmethod
    def _has_records(self) -> bool:
        """Return whether anything was measured."""

    async def _end(self) -> None:
        """Compute the results of a failed run from the data so far, and mark them as final."""
        if self.result is None and self.state is RunState.FAILED and self._has_records:
            try:
                await self._process()
            except Exception as error:
                # Without the mark, the runner would wait for them.
                self.log.exception("the failed run has no results")
                problem = one_line(f"{type(error).__name__}: {error}")
                self.progress.artifact_error = f"the results cannot be made: {problem}"
        await self.settle()

    @property
    def _silent_s(self) -> float:
        """Seconds since the last arrival."""
        return (mono_ns() - self._last_arrival_mono_ns) / 1e9

    async def _wait_for_arrival(self, *, then_s: float = 0.0) -> None:
        """Wait until something arrives, at most until the next check, and then for `then_s`. Time
        in which this process or the machine was suspended does not count as silence, because
        nothing could arrive."""
        looked_mono_ns = mono_ns()
        self._arrived.clear()
        await is_set_within(self._arrived, POLL_S)
        await asyncio.sleep(then_s)
        late_s = (mono_ns() - looked_mono_ns) / 1e9 - POLL_S - then_s
        self._last_arrival_mono_ns += round(max(0.0, late_s) * 1e9)

    def finding(self) -> dict[str, Any] | None:
        return None if self._finding is None else msgspec.to_builtins(self._finding)

    async def settle(self) -> None:
        """Mark the results as final."""
        self.progress.set_results_ready(self.result is not None)
        if self.experiment is not None:
            reason = self.progress.status().reason
            self._finding = await self.experiment.add(self.state, reason, self.result)

    def upload(self, manifest: Manifest, started_wall_ns: int) -> None:
        """Upload the files of this run if its config has a bucket. Raises EnvironmentProblem."""
        context = self.context
        if (s3 := context.config.artifacts.s3) is None:
            return
        own = uploads.folder_of(context.config.name, context.run_id, started_wall_ns)
        into = context.run.bucket_folder(own)
        if self.experiment is not None:
            into = self.experiment.bucket_folder(context.artifacts.name)
        self.progress.uploaded_to = uploads.upload(context.artifacts, manifest, s3, into=into).url

    async def repeat_requests(self) -> None:
        """Repeat the request to end or start the run until the published state reflects it."""
        if self._cancel_reason and not self.is_cancelling:
            await self.publish(UP, CancelRequested(*self.header, reason=self._cancel_reason))
        if self._assigned_start_wall_ns and self.state is RunState.READY:
            await self.publish(
                UP, StartRequested(*self.header, at_wall_ns=self._assigned_start_wall_ns)
            )

    def status(self) -> Status:
        return self.progress.status()

    async def wait_change(self, after: int, timeout_s: float) -> None:
        await self.progress.wait_change(after, timeout_s)

    def cancel(self, reason: str) -> None:
        self._cancel_reason = reason

    def handle_message(self, message: RunnerMessage) -> None:
        """Handle a message of the runner. A benchmark of a tool has no events and no replicas."""
        if isinstance(message, Start):
            self._assigned_start_wall_ns = message.at_wall_ns

    def collected(self) -> None:
        self.finished.set()

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()
            self._api = None

    def results(self) -> RunResult | None:
        return self.result

    def folder(self) -> Path:
        return self.context.artifacts
