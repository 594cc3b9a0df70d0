"""The outcome of a stack's run, from what its stages have left. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.outcome import RunOutcome

STOPPED = "stopped by the user before there was anything to report"
NOTHING_MADE = "nothing was created"


@dataclass(frozen=True, kw_only=True)
class StackEnd:
    """What a stack's run is known to have done when its last stage is over."""

    run_id: str
    stack: str
    namespace: str | None = None
    is_made: bool = True
    """Whether an object of the stack may have been created."""
    is_kept: bool = False
    was_interrupted: bool = False
    failure: AiperfError | None = None
    """The first error."""
    status: Status | None = None
    """The last status of the run, or of the last shape's."""
    results: Results | None = None
    """The results of that run."""
    trials: ExperimentResult | None = None
    """The results of an experiment whose trials did not come all at once."""
    has_all_trials: bool = False
    """Whether such an experiment has an outcome of each trial."""
    artifacts: Path | None = None
    artifact_error: str = ""
    uploaded_to: str = ""
    """URL to which the runner has uploaded the artifacts."""
    left: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    is_verified: bool = True
    """Whether the leak check had a report, and Pulumi's state agrees with it."""
    is_unlisted: bool = False
    """Whether the leak check could not list what the stack uses."""
    took_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each stage."""

    def outcome(self) -> RunOutcome:
        """Return the outcome that is shown."""
        status, is_unmade = self.status, not (self.is_made or self.has_all_trials)
        state, reason, failure = self._judged(is_unmade=is_unmade)
        return RunOutcome(
            run_id=self.run_id,
            state=state,
            reason=reason,
            failure=failure,
            results=self.trials or self.results,
            artifacts=self.artifacts,
            artifact_error=self.artifact_error or (status.artifact_error if status else ""),
            uploaded_to=self.uploaded_to or (status.uploaded_to if status else ""),
            was_interrupted=self.was_interrupted or is_unmade,
            left=self.left,
            is_unlisted=self.is_unlisted,
            is_unverified=self.is_made and not self.is_kept and not self.is_verified,
            more={
                "stack": self.stack,
                "namespace": self.namespace,
                "kept": self.is_kept,
                "left": list(self.left),
                "not_checked": list(self.not_checked),
                "took_s": self.took_s,
            },
        )

    def _judged(self, *, is_unmade: bool) -> tuple[RunState, str, ExitCode]:
        """Return the state of the run, its reason, and the exit code if it failed."""
        results, status = self.trials or self.results, self.status
        state = RunState.CANCELLED if self.was_interrupted or is_unmade else RunState.FAILED
        reason = str(self.failure) if self.failure else ("" if results else STOPPED)
        failure = self.failure.exit_code if self.failure else ExitCode.BENCHMARK_FAILED
        if is_unmade:
            reason = NOTHING_MADE
        if status is not None and RunState(status.state).is_final and self.failure is None:
            state, reason = RunState(status.state), status.reason
            failure = status.exit_code or failure
        if self.trials is not None and not self.was_interrupted:
            # What failed is in the trials, unless some of them were not begun.
            state = RunState.DONE if self.has_all_trials else RunState.FAILED
            failure = ExitCode.BENCHMARK_FAILED
        return state, reason, failure
