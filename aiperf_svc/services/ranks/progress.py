"""What is shown of a benchmark on ranks while it goes."""

import asyncio
from time import monotonic_ns, time_ns
from typing import Any

from aiperf_svc.adapters.results_api.status import Status, StepStatus
from aiperf_svc.core.telemetry.client_load import ClientLoad
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.messages.events import RosterPublished, RunStatePublished
from aiperf_svc.protocol.messages.reports import StepProgress
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import is_set_within

_NONE_YET = StepProgress(total=0, ended=0, attempts=0)
"""Before the timing manager has planned the steps."""


class StepsProgress:
    """Builds `Status`."""

    def __init__(self, config: Any, topology: Topology) -> None:
        self._kind = config.workload.kind
        self._topology = topology
        self._number = 1
        self._changed = asyncio.Event()
        self._started_mono_ns = monotonic_ns()
        self._phase_mono_ns = 0
        self._state: RunStatePublished | None = None
        self._roster: RosterPublished | None = None
        self._steps: StepProgress | None = None
        self._client: ClientLoad | None = None
        self._verdict: str | None = None
        self._artifact_error = ""
        self._uploaded_to = ""
        self._results_ready = False
        self._is_settled = False

    @property
    def failure(self) -> str:
        """Why the run failed; empty when it did not."""
        state = self._state
        return state.reason if state is not None and state.state is RunState.FAILED else ""

    def set_steps(self, steps: StepProgress) -> None:
        """Take how far the steps are."""
        if steps != self._steps:
            self._steps = steps
            self._bump()

    def set_client(self, load: ClientLoad | None) -> None:
        """Take what the own services do."""
        self._client = load

    def set_roster(self, roster: RosterPublished) -> None:
        """Take who takes part."""
        self._roster = roster
        self._bump()

    def set_state(self, state: RunStatePublished) -> None:
        """Take where the run is."""
        if self._state is None or state.state is not self._state.state:
            # A load that starts with others starts later than its state.
            wait_ns = max(0, state.start_wall_ns - time_ns())
            self._phase_mono_ns = monotonic_ns() + wait_ns
        self._state = state
        self._bump()

    def set_verdict(self, verdict: str) -> None:
        """Take the verdict on the run."""
        self._verdict = verdict

    def set_artifact_error(self, text: str) -> None:
        """Take why files are missing."""
        self._artifact_error = text

    def set_uploaded(self, url: str) -> None:
        """Take where the results are as well."""
        self._uploaded_to = url

    def set_results_ready(self, is_ready: bool) -> None:
        """Take whether there are results: nothing more will come."""
        self._results_ready, self._is_settled = is_ready, True
        self._bump()

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Wait until the status has another number than `after`, at most so long."""
        if self._number == after:
            await is_set_within(self._changed, timeout_s)

    def status(self) -> Status:
        """Describe the run as it is now."""
        now, state, steps = monotonic_ns(), self._state, self._steps
        members = self._roster.members if self._roster is not None else ()
        missing = self._roster.missing if self._roster is not None else ()
        return Status(
            number=self._number,
            state=state.state.value if state else RunState.PENDING.value,
            reason=state.reason if state else "",
            phase="profiling",
            is_cancelling=state.is_cancelling if state else False,
            elapsed_s=(now - self._started_mono_ns) / 1e9,
            phase_elapsed_s=max(0, now - self._phase_mono_ns) / 1e9 if self._phase_mono_ns else 0.0,
            requested_requests=None,
            requested_duration_s=None,
            completed=0,
            errored=0,
            cancelled=0,
            in_flight=0,
            requests_per_s=0.0,
            ttft_p50_ms=None,
            ttft_p99_ms=None,
            latency_p50_ms=None,
            workers=sum(m.service is Service.WORKER for m in members),
            workers_lost=sum(m.service is Service.WORKER and m.lost for m in members),
            record_processors=sum(m.service is Service.RECORD_PROCESSOR for m in members),
            dataset={},
            message=f"waiting for {', '.join(missing)}" if missing else "",
            results_ready=self._results_ready,
            artifact_error=self._artifact_error,
            verdict=self._verdict,
            uploaded_to=self._uploaded_to,
            is_settled=self._is_settled,
            exit_code=_exit_code(state),
            steps=_step_status(self._kind, steps or _NONE_YET),
            client=self._client,
        )

    def _bump(self) -> None:
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _exit_code(state: RunStatePublished | None) -> ExitCode | None:
    return state.exit_code if state is not None and state.state is RunState.FAILED else None


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
