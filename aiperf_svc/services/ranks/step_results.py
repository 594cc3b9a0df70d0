"""Records manager of a benchmark on ranks: stores raw output, computes and serves results."""

import asyncio
from collections.abc import Coroutine
from time import time_ns
from typing import Any

import msgspec
import zmq
from msgspec.structs import replace

from aiperf_svc import __version__
from aiperf_svc.adapters.messaging.bus import Bus, receive_each
from aiperf_svc.adapters.results_api.status import Status, StepStatus
from aiperf_svc.adapters.storage.tool_artifacts import RawOutput, write_run
from aiperf_svc.core.results.tool_result import RankFacts, RankLayout, ToolResult
from aiperf_svc.core.telemetry.client_series import ClientSeries
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.events import Heartbeat, RosterPublished, RunStatePublished
from aiperf_svc.protocol.messages.reports import StepProgress
from aiperf_svc.protocol.messages.steps import StepOutput, StepRecord
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import every, mono_ns, wall_ns
from aiperf_svc.services.base_progress import BaseProgress
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.results_service import ResultsService
from aiperf_svc.workloads.registry import tool_of
from aiperf_svc.workloads.results import FinishedSteps, summarise_steps

PROGRESS_S = 0.5
MISSING_S = 15.0
"""While draining, missing pieces count as lost when no piece has arrived and no output was parsed
for this long."""


class StepsProgress(BaseProgress):
    """Builds the `Status` of a run of workload `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._steps = StepProgress(total=0, ended=0, attempts=0)
        """Empty until the timing manager has planned the steps."""

    def set_steps(self, steps: StepProgress) -> None:
        if steps != self._steps:
            self._steps = steps
            self._changes.note()

    def status(self) -> Status:
        return replace(super().status(), steps=_step_status(self._kind, self._steps))


def _step_status(kind: str, steps: StepProgress) -> StepStatus:
    running_ns = time_ns() - steps.due_wall_ns if steps.due_wall_ns else 0
    return StepStatus(
        workload=kind,
        total=steps.total,
        ended=steps.ended,
        failed=len(steps.failures),
        name=steps.name,
        stage=steps.stage,
        running_s=max(0.0, running_ns / 1e9),
        expected_s=steps.expected_ns / 1e9,
        text=steps.text,
    )


class StepResults(ResultsService[StepsProgress]):
    """Collects, summarises, exports, serves."""

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._records = bus.bind(zmq.PULL, Port.RECORDS)
        self._raw = RawOutput(context.artifacts / "raw")
        self._steps: dict[int, StepRecord] = {}
        self._progress: StepProgress | None = None
        self._started_wall_ns = 0
        self._ended_wall_ns = 0
        self._client_series = ClientSeries()
        self.progress = StepsProgress(context.ranks.workload.kind)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._records, self._handle_record),
            every(PROGRESS_S, self._publish_progress),
        ]

    # --- arriving records ------------------------------------------------------------------------

    def _handle_record(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id:
            return
        match message:
            case StepOutput():
                self._raw.add(message)
            case StepRecord(step=step):
                self._steps[step] = message
                self._raw.end_step(message)
            case _:
                return
        self._last_arrival_mono_ns = mono_ns()
        self._arrived.set()

    async def _publish_progress(self) -> None:
        self.progress.client = self._client_series.load(wall_ns())
        await self.repeat_requests()

    def on_heartbeat(self, beat: Heartbeat) -> None:
        self._client_series.add(beat.sender, beat.service, beat.vitals, at_wall_ns=wall_ns())
        if beat.service is Service.TIMING_MANAGER and beat.steps is not None:
            self._progress = beat.steps
            self.progress.set_steps(beat.steps)
        elif beat.service is Service.RECORD_PROCESSOR and beat.progress:
            self._last_arrival_mono_ns = mono_ns()

    def on_roster(self, roster: RosterPublished) -> None:
        self.progress.set_roster(roster)
        self._arrived.set()

    def on_state(self, state: RunStatePublished) -> None:
        if state.state is RunState.PROFILING:
            self._started_wall_ns = self._started_wall_ns or wall_ns()
        elif state.state is RunState.DRAINING:
            self._ended_wall_ns = wall_ns()
        self.progress.set_state(state)

    # --- the end ---------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Wait for the records of all ended attempts, except attempts whose ranks were all lost."""
        self._last_arrival_mono_ns = mono_ns()
        while (
            self._progress is None
            or len(self._steps) < self._progress.attempts - self._progress.silent
        ):
            if self._silent_s > MISSING_S:
                self.log.error("some steps have no record")
                return
            await self._wait_for_arrival()

    async def _process(self) -> None:
        self._raw.close()
        result = await asyncio.to_thread(summarise_steps, self._workload, self._finished())
        self.result = result
        self.progress.verdict = result.verdict.value
        try:
            await asyncio.to_thread(self._write, result)
        except EnvironmentProblem as error:
            self.log.error("%s", error)
            self.progress.artifact_error = str(error)

    @property
    def _workload(self) -> Any:
        return tool_of(self.context.ranks)

    def _finished(self) -> FinishedSteps:
        progress = self._progress
        return FinishedSteps(
            run_id=self.context.run_id,
            version=__version__,
            config=self.context.ranks,
            records=tuple(self._steps[number] for number in sorted(self._steps)),
            planned=progress.total if progress else 0,
            ranks=tuple(
                RankFacts(**msgspec.structs.asdict(rank))
                for rank in (progress.ranks if progress else ())
            ),
            is_local=not self.context.addresses.is_tcp,
            failure=self.progress.failure or self._unrecorded,
            was_cancelled=self.is_cancelling,
            cli_command=self.context.run.cli_command,
            start_wall_ns=self._started_wall_ns,
            end_wall_ns=self._ended_wall_ns or wall_ns(),
            topology=RankLayout(
                layout=self.context.topology.layout, ranks=self.context.topology.workers
            ),
        )

    @property
    def _unrecorded(self) -> str:
        """Return the problems of attempts without a record; empty if all have one."""
        progress = self._progress
        if progress is None or len(self._steps) >= progress.attempts:
            return ""
        return "; ".join(progress.failures) or "some steps have no record"

    def _write(self, result: ToolResult) -> None:
        if self._raw.error:
            self.progress.artifact_error = self._raw.error
        config = self.context.ranks
        manifest = write_run(self.context.artifacts, result, self._workload.plots(config))
        self.upload(manifest, self._started_wall_ns)

    @property
    def _has_records(self) -> bool:
        return bool(self._steps)

    async def close(self) -> None:
        await super().close()
        self._raw.close()
