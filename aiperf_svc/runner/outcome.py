"""The outcome of a run, and its exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiperf_svc.core.results.run_result import SCHEMA
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.messages import RunState

RUN_RESULT = SCHEMA.partition("/")[0] + "/"
"""Beginning of the `schema_version` of results.json."""


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
    summary: dict[str, Any] | None
    """The content of profile_export_aiperf.json or results.json; None when nothing was measured."""
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
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys for `--json`."""

    @property
    def exit_code(self) -> ExitCode:
        """The first of these that applies."""
        if self.left:
            return ExitCode.LEAKED
        if self.is_unverified:
            return ExitCode.ERROR
        if self.was_interrupted:
            return ExitCode.INTERRUPTED
        if self.state == RunState.FAILED:
            return self.failure
        if self.state == RunState.CANCELLED:
            return ExitCode.INTERRUPTED
        if self.summary is None or not has_succeeded(self.summary):
            return ExitCode.BENCHMARK_FAILED
        if self.artifact_error:
            return ExitCode.ERROR
        if own_part(self.summary).get("verdict") == "invalid":
            return ExitCode.VERDICT_INVALID
        if not all(objective.get("ok") for objective in own_part(self.summary).get("slo", ())):
            return ExitCode.SLO_MISSED
        return ExitCode.OK

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as an object for `--json`."""
        return {
            "run_id": self.run_id,
            "exit_code": int(self.exit_code),
            "state": self.state,
            "reason": self.reason,
            "artifacts": str(self.artifacts) if self.artifacts else None,
            "artifact_error": self.artifact_error or None,
            "uploaded_to": self.uploaded_to or None,
            **self.more,
            "results": self.summary,
        }


def is_run_result(summary: dict[str, Any]) -> bool:
    """True if this is the content of results.json: of a benchmark that ran a tool on ranks."""
    return str(summary.get("schema_version")).startswith(RUN_RESULT)


def own_part(summary: dict[str, Any]) -> dict[str, Any]:
    """Our own part of AIPerf's schema, or all of results.json: verdict, SLO, accounts."""
    if is_run_result(summary):
        return summary
    part: dict[str, Any] = summary.get("aiperf_svc", {})
    return part


def has_succeeded(summary: dict[str, Any]) -> bool:
    """True if any request completed; of a benchmark on ranks, if all steps did."""
    if is_run_result(summary):
        accounts = summary["accounts"]
        is_whole = not accounts["failed"] and not accounts["lost"]
        return is_whole and bool(accounts["completed"]) and not summary["failure"]
    return bool(summary.get("request_count", {}).get("avg"))
