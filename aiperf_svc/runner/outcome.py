"""The outcome of a run, and its exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from aiperf_svc.adapters.exports.result_files import Results, encode
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Everything that is shown at the end of a run."""

    run_id: str
    state: str
    """The run's final state."""
    reason: str
    """Reason of a failure or a cancellation."""
    failure: ExitCode = ExitCode.BENCHMARK_FAILED
    """Kind of failure, in the state `failed`."""
    results: Results | None
    """None when nothing was measured."""
    artifacts: Path | None
    """Artifact folder; None if it could not be made."""
    artifact_error: str = ""
    uploaded_to: str = ""
    """URL of the uploaded artifacts; empty if there is none."""
    was_interrupted: bool = False
    left: tuple[str, ...] = ()
    """Objects or processes of the run that still exist."""
    is_unverified: bool = False
    """True if it could not be checked whether something is left."""
    is_unlisted: bool = False
    """True if what the stack uses may not be listed, so that what is left is unknown."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys for `--json`."""

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

    def _failed_part(self) -> str:
        """Return why a run that ended as planned has another exit code than 0."""
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
            "reason": self.reason or self._failed_part(),
            "artifacts": str(self.artifacts) if self.artifacts else None,
            "artifact_error": self.artifact_error or None,
            "uploaded_to": self.uploaded_to or None,
            **self.more,
            "results": None if self.results is None else msgspec.Raw(encode(self.results)),
        }
