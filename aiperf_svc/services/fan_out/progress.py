"""Counts the ended trials of an experiment in Jobs, and builds its status."""

from collections import deque
from collections.abc import Sequence

from aiperf_svc.adapters.results_api.status import ExperimentStatus, ShownTrial, Status
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.number_text import count
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.services.base_progress import SHOWN_ROWS, StatusChanges, shown_trial


class FanOutProgress:
    def __init__(self, *, total: int, started_mono_s: float) -> None:
        """`total` is the number of trials."""
        self._total, self._started_mono_s = total, started_mono_s
        self.state, self.reason = RunState.PROFILING, ""
        self.is_cancelling = False
        self.running: dict[int, str] = {}
        """Pod of each shape that is being measured."""
        self.failed = 0
        """Number of trials that have failed."""
        self.artifact_error = self.uploaded_to = ""
        self.is_settled = False
        """Whether the files of the experiment are written, or cannot be written."""
        self.has_summary = False
        self._rows: deque[ShownTrial] = deque(maxlen=SHOWN_ROWS)
        self._counted: set[int] = set()
        self._earlier = 0
        """Number of trials that ended before this process started."""
        self.changes = StatusChanges()

    def count(self, rows: Sequence[TrialRow]) -> bool:
        """Count ended trials, each once; return whether one of them has failed."""
        for each in rows:
            if each.number not in self._counted:
                self._counted.add(each.number)
                self._rows.append(shown_trial(each))
                self.failed += _has_failed(each)
        return any(map(_has_failed, rows))

    def end_earlier(self) -> None:
        """Count all trials so far as measured before this process started."""
        self._earlier = len(self._counted)

    def status(self, now_mono_s: float) -> Status:
        """Return the status at a time."""
        ended, is_final = len(self._counted), self.state.is_final
        own = ended - self._earlier
        passed_s = now_mono_s - self._started_mono_s
        is_writing = is_final and not self.is_settled
        at_work = count(len(self.running), "pod")
        message = f"{ended:,} of {self._total:,} trials have ended, {at_work} at work"
        return Status(
            number=self.changes.number,
            state=(RunState.PROCESSING if is_writing else self.state).value,
            reason=self.reason,
            phase="",
            is_cancelling=self.is_cancelling,
            elapsed_s=passed_s,
            phase_elapsed_s=passed_s,
            workers=len(self.running),
            workers_lost=0,
            record_processors=0,
            message="" if is_final else message,
            results_ready=self.is_settled and self.has_summary,
            artifact_error=self.artifact_error,
            verdict=None,
            uploaded_to=self.uploaded_to,
            is_settled=self.is_settled,
            exit_code=ExitCode.BENCHMARK_FAILED if self.state is RunState.FAILED else None,
            experiment=ExperimentStatus(
                number=0,
                parameters={},
                repetition=1,
                attempt=1,
                total=self._total,
                ended=ended,
                failed=self.failed,
                left_s=(self._total - ended) * passed_s / own if own else None,
                rows=tuple(self._rows),
            ),
        )


def _has_failed(row: TrialRow) -> bool:
    return row.outcome.state == RunState.FAILED
