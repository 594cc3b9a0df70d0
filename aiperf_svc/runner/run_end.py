"""Judges how a run ended: one set of rules for state, reason and exit code of every kind of run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.outcome import RunOutcome

STOPPED = "stopped by the user before there were results"
NOTHING_MADE = "nothing was created"


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """What is known of a run when its last process or object is gone.

    The first of these that is given decides the state and the reason: `known`, `is_whole`, a final
    `status` without an `error`, `error`. Otherwise the run was stopped early.
    """

    run_id: str = ""
    known: tuple[str, str, ExitCode] | None = None
    """State, reason, and the exit code of a failure, where they are known already."""
    is_whole: bool | None = None
    """Of an experiment whose trials this program has collected: whether each trial has an outcome,
    so that what failed is in the trials; None for other runs."""
    status: Status | None = None
    """The last status of the run, or of the last of several."""
    error: Exception | None = None
    """The first error. One of another library is called unexpected."""
    was_interrupted: bool = False
    results: Results | None = None
    """None: nothing was measured."""
    artifacts: Path | None = None
    artifact_error: str = ""
    uploaded_to: str = ""
    """URL to which this program has uploaded the artifacts."""
    left: tuple[str, ...] = ()
    is_unverified: bool = False
    is_unlisted: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys for `--json`."""


def outcome_of(end: RunEnd) -> RunOutcome:
    """Return the outcome of a run from what is known at its end."""
    status, error = end.status, _as_ours(end.error)
    state, reason, failure = _judge(end, error)
    left = (*end.left, str(error)) if isinstance(error, LeakError) and not end.left else end.left
    return RunOutcome(
        run_id=end.run_id,
        state=state,
        reason=reason,
        failure=failure,
        results=end.results,
        artifacts=end.artifacts,
        artifact_error=end.artifact_error or (status.artifact_error if status else ""),
        uploaded_to=end.uploaded_to or (status.uploaded_to if status else ""),
        was_interrupted=end.was_interrupted,
        left=left,
        is_unverified=end.is_unverified,
        is_unlisted=end.is_unlisted,
        more=end.more,
    )


def _judge(end: RunEnd, error: AiperfError | None) -> tuple[str, str, ExitCode]:
    """Return the state, its reason, and the exit code of a failure."""
    status = end.status
    failure = error.exit_code if error else ExitCode.BENCHMARK_FAILED
    if end.known is not None:
        return end.known
    is_final = status is not None and RunState(status.state).is_final
    if status is not None and is_final and error is None:
        state, reason = status.state, status.reason
        failure = ExitCode(status.exit_code) if status.exit_code else failure
    else:
        state = RunState.CANCELLED if end.was_interrupted else RunState.FAILED
        reason = str(error) if error else ("" if end.results else STOPPED)
    if end.is_whole is not None and not end.was_interrupted:
        state = RunState.DONE if end.is_whole else RunState.FAILED
        failure = ExitCode.BENCHMARK_FAILED
    return state, reason, failure


def _as_ours(error: Exception | None) -> AiperfError | None:
    if error is None or isinstance(error, AiperfError):
        return error
    return EnvironmentProblem(f"unexpected {type(error).__name__}: {error}")
