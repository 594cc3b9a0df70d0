"""The outcome of a run, and its exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from aiperf_svc.adapters.exports.result_files import Results, encode
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem, LeakError, error_text
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState


@dataclass(frozen=True, kw_only=True)
class _Facts:
    run_id: str = ""
    results: Results | None = None
    """None when nothing was measured."""
    artifacts: Path | None = None
    """Artifact folder; None if it could not be created."""
    artifact_error: str = ""
    uploaded_to: str = ""
    """URL to which the artifacts were uploaded; empty if they were not."""
    was_interrupted: bool = False
    left: tuple[str, ...] = ()
    """Objects or processes of the run that still exist."""
    is_unverified: bool = False
    """True if it could not be checked whether something is left."""
    is_unlisted: bool = False
    """True if the user may not list the types of the stack, so what is left is unknown."""
    is_out_of_time: bool = False
    """True if the time limit has ended the run."""
    is_last: bool = False
    """True if no other part may follow: its stack stays, or another user has taken it over."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys for `--json`."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome(_Facts):
    """Everything shown at the end of a run."""

    state: str
    """The run's final state."""
    reason: str
    """Reason of a failure or a cancellation."""
    failure: ExitCode = ExitCode.BENCHMARK_FAILED
    """Kind of failure, in the state `failed`."""

    @property
    def has_failed(self) -> bool:
        """Whether the run failed, and not because the user stopped it."""
        return self.state == RunState.FAILED and not self.was_interrupted

    @property
    def exit_code(self) -> ExitCode:
        """The first of these that applies."""
        if self.left:
            return ExitCode.LEAKED
        if self.is_unlisted:
            return ExitCode.UNVERIFIED
        if self.is_unverified:
            return ExitCode.ERROR
        if self.was_interrupted:
            return ExitCode.INTERRUPTED
        if self.state == RunState.FAILED:
            return self.failure
        if self.state == RunState.CANCELLED:
            return ExitCode.INTERRUPTED
        if self.results is None or not self.results.has_succeeded:
            return ExitCode.BENCHMARK_FAILED
        if self.artifact_error:
            return ExitCode.ERROR
        return self.results.exit_code

    @property
    def text(self) -> str:
        """State, verdict and reason in one line."""
        verdict = self.results.verdict if self.results is not None else None
        parts = [self.state, f"verdict {verdict}" if verdict else "", self.reason]
        return ", ".join(part for part in parts if part)

    @property
    def why(self) -> str:
        """Why the exit code is not 0; empty if it is 0."""
        if self.reason:
            return self.reason
        match self.exit_code:
            case ExitCode.OK:
                return ""
            case ExitCode.LEAKED:
                return f"left behind: {', '.join(self.left)}"
            case ExitCode.UNVERIFIED:
                return "it is unknown whether anything is left"
            case ExitCode.ERROR:
                return self.artifact_error or "it is unknown whether anything is left"
            case ExitCode.INTERRUPTED:
                return "stopped by the user"
        return "nothing was measured" if self.results is None else self.results.problem

    def as_json(self) -> dict[str, object]:
        """Return the outcome as an object for `--json`."""
        return {
            "run_id": self.run_id,
            "exit_code": int(self.exit_code),
            "state": self.state,
            "reason": self.why,
            "artifacts": str(self.artifacts) if self.artifacts else None,
            "artifact_error": self.artifact_error or None,
            "uploaded_to": self.uploaded_to or None,
            **self.more,
            "results": None if self.results is None else msgspec.Raw(encode(self.results)),
        }


STOPPED = "stopped by the user before there were results"
NOTHING_CREATED = "nothing was created"


@dataclass(frozen=True, kw_only=True)
class RunEnd(_Facts):
    """The facts about a run after its last process or object is gone.

    The reason is that of `error`, else of a final `status`, which also decides the state. Without
    either, the run was stopped early.
    """

    status: Status | None = None
    """The last status of the run."""
    error: Exception | None = None
    """The first error. An error of a library is reported as unexpected."""

    def outcome(self) -> RunOutcome:
        """Return the outcome of the run."""
        status, error = self.status, self.error
        if error is not None and not isinstance(error, AiperfError):
            error = EnvironmentProblem(error_text(error))
        state: str = RunState.CANCELLED if self.was_interrupted else RunState.FAILED
        reason, failure = "" if self.results else STOPPED, ExitCode.BENCHMARK_FAILED
        if error is not None:
            reason, failure = str(error), error.exit_code
        elif status is not None and RunState(status.state).is_final:
            state, reason = status.state, status.reason
            failure = ExitCode(status.exit_code or failure)
        facts = {each.name: getattr(self, each.name) for each in fields(_Facts)}
        if isinstance(error, LeakError) and not self.left:
            facts["left"] = (str(error),)
        if status is not None:
            facts["artifact_error"] = self.artifact_error or status.artifact_error
            facts["uploaded_to"] = self.uploaded_to or status.uploaded_to
        return RunOutcome(state=state, reason=reason, failure=failure, **facts)
