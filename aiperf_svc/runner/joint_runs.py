"""Several runs that went on at once: how each ended, and the exit code of all."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiperf_svc.adapters.storage.joint_artifacts import FinishedMember
from aiperf_svc.core.results.joint_result import Joint, JointMember
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.common_start import Offset
from aiperf_svc.runner.outcome import RunOutcome

_OF_ALL = (ExitCode.LEAKED, ExitCode.UNVERIFIED, ExitCode.INTERRUPTED)
"""Exit codes of one run that are those of all, whatever became of the results."""
_ORDER = (
    *_OF_ALL,
    ExitCode.ERROR,
    ExitCode.BENCHMARK_FAILED,
    ExitCode.VERDICT_INVALID,
    ExitCode.SLO_MISSED,
    ExitCode.SLO_NOT_JUDGED,
)


@dataclass(frozen=True, kw_only=True)
class JointRun:
    """One of the runs when it has ended."""

    name: str
    where: str
    """The context of its cluster, or the address of its target."""
    outcome: RunOutcome
    offsets: Mapping[int, Offset] = field(default_factory=dict)
    """Its clock when it was given the start of each trial, by number; of a run without an
    experiment, trial 1."""

    def offset(self, trial: int = 1) -> Offset | None:
        """Return its clock at a trial, or when it is known next best; None if it is not known."""
        return self.offsets.get(trial) or next(iter(self.offsets.values()), None)


def joint_exit_code(outcomes: Sequence[RunOutcome]) -> ExitCode:
    """Return the first of these that applies to any run: something is left, or may be left, the
    user stopped it, something outside the benchmark failed, a run has no results, the verdict, an
    SLO. If no run has results, it is that of the first one."""
    codes = [outcome.exit_code for outcome in outcomes]
    if not {ExitCode.LEAKED, ExitCode.UNVERIFIED} & {*codes} and all(
        each.results is None for each in outcomes
    ):
        return codes[0]
    # A run without results is a hole in the joint result, whatever the reason.
    codes = [
        ExitCode.BENCHMARK_FAILED if each.results is None and code not in _OF_ALL else code
        for each, code in zip(outcomes, codes, strict=True)
    ]
    return next((code for code in _ORDER if code in codes), ExitCode.OK)


def with_unreadable(code: ExitCode, joints: Iterable[Joint]) -> ExitCode:
    """Return the exit code of all runs, raised if the records of one cannot be read."""
    has_problem = any(member.problem for joint in joints for member in joint.members)
    return raised_to_error(code) if has_problem else code


def raised_to_error(code: ExitCode) -> ExitCode:
    """Return the exit code of runs of which one cannot be read: an error, if nothing worse."""
    return code if code in _OF_ALL else ExitCode.ERROR


def finished_member(run: JointRun, folder: Path, trial: int = 1) -> FinishedMember:
    """Return one of the runs as a part of a joint result, whose files are in `folder`; `trial` is
    the number of the trial that the run is of an experiment."""
    outcome, offset = run.outcome, run.offset(trial)
    results = outcome.results
    where = outcome.artifacts
    member = JointMember(
        name=run.name,
        where=run.where,
        folder=os.path.relpath(where, folder) if where is not None else "",
        stack=str(outcome.more.get("stack", "")),
        state=outcome.state,
        reason=outcome.reason,
        exit_code=int(outcome.exit_code),
        verdict=results.verdict if results is not None else None,
        cause=results.cause if results is not None else "",
        clock_ahead_ms=offset.ns / 1e6 if offset else None,
        clock_uncertainty_ms=offset.uncertainty_ns / 1e6 if offset else None,
    )
    return FinishedMember(
        member=member,
        results=results if isinstance(results, RunResult) else None,
        folder=where,
        ahead_ns=offset.ns if offset else 0,
        uncertainty_ns=offset.uncertainty_ns if offset else None,
    )
