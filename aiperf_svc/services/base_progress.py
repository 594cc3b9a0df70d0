"""The part of the live status that all kinds of runs share: state, members and outcome."""

import asyncio
from time import monotonic_ns, time_ns

from aiperf_svc.adapters.results_api.status import ShownTrial, Status
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.headline import headline
from aiperf_svc.core.verdict.health_log import ClientLoad
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.messages.events import RosterPublished, RunStatePublished
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import is_set_within


class StatusChanges:
    """Counts the changes of a status, so a client can wait for the next change after the one that
    it has seen."""

    def __init__(self) -> None:
        self.number = 1
        self._next = asyncio.Event()

    def note(self) -> None:
        """Count a change, and wake the clients that wait for it."""
        self.number += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, after: int, timeout_s: float) -> None:
        """Wait until the number differs from `after`, or the timeout."""
        if self.number == after:
            await is_set_within(self._next, timeout_s)


SHOWN_ROWS = 20
"""Number of ended trials in a status; the latest ones are shown."""


def shown_trial(found: TrialRow, attempt: int = 1) -> ShownTrial:
    """Return an ended trial in the form of a status."""
    outcome, measured = found.outcome, found.measured
    return ShownTrial(
        number=outcome.trial.number,
        parameters=outcome.trial.parameters,
        repetition=outcome.trial.repetition,
        attempt=attempt,
        state=outcome.state,
        reason=outcome.reason,
        verdict=None if measured is None else measured.verdict,
        text="" if measured is None else headline(measured),
    )


class BaseProgress:
    """Builds the part of `Status` that all kinds of runs share."""

    def __init__(self) -> None:
        self._changes = StatusChanges()
        self._started_mono_ns = monotonic_ns()
        self._phase_mono_ns = 0
        self._state = RunState.PENDING
        self._reason = ""
        self._exit_code = ExitCode.BENCHMARK_FAILED
        self._is_cancelling = False
        self._roster: RosterPublished | None = None
        self.client: ClientLoad | None = None
        """CPU load of the client."""
        self.verdict: str | None = None
        self.artifact_error = ""
        """Reason why artifacts could not be written."""
        self.uploaded_to = ""
        """URL of the uploaded artifacts."""
        self._results_ready = False
        self._is_settled = False

    def set_roster(self, roster: RosterPublished) -> None:
        self._roster = roster
        self._changes.note()

    def set_state(self, state: RunStatePublished) -> None:
        if state.state is not self._state:
            # A load that starts together with others starts later than its state.
            wait_ns = max(0, state.start_wall_ns - time_ns())
            self._phase_mono_ns = monotonic_ns() + wait_ns
        self._state, self._reason = state.state, state.reason
        self._exit_code = state.exit_code
        self._is_cancelling = state.is_cancelling
        self._changes.note()

    def set_results_ready(self, is_ready: bool) -> None:
        """Set whether the summary can be fetched."""
        self._results_ready = is_ready
        self._is_settled = True
        self._changes.note()

    @property
    def failure(self) -> str:
        """Reason why the run failed; empty if it did not fail."""
        return (self._reason or "unknown reason") if self._state is RunState.FAILED else ""

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Wait until `status().number` differs from `after`, or the timeout."""
        await self._changes.wait(after, timeout_s)

    def status(self) -> Status:
        now = monotonic_ns()
        members = self._roster.members if self._roster is not None else ()
        missing = self._roster.missing if self._roster is not None else ()
        return Status(
            number=self._changes.number,
            state=self._state.value,
            reason=self._reason,
            phase="profiling",
            is_cancelling=self._is_cancelling,
            elapsed_s=(now - self._started_mono_ns) / 1e9,
            phase_elapsed_s=max(0, now - self._phase_mono_ns) / 1e9 if self._phase_mono_ns else 0.0,
            workers=sum(m.service is Service.WORKER for m in members),
            workers_lost=sum(m.service is Service.WORKER and m.lost for m in members),
            record_processors=sum(m.service is Service.RECORD_PROCESSOR for m in members),
            message=f"waiting for {', '.join(missing)}" if missing else "",
            results_ready=self._results_ready,
            artifact_error=self.artifact_error,
            verdict=self.verdict,
            uploaded_to=self.uploaded_to,
            is_settled=self._is_settled,
            exit_code=self._exit_code if self._state is RunState.FAILED else None,
            client=self.client,
        )
