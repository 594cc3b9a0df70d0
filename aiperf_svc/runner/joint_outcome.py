"""The end of several runs at once: their joint result, its files, and one exit code."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from aiperf_svc.adapters.storage.joint_artifacts import FinishedMember, join, write_joint
from aiperf_svc.core.results.joint_result import Joint, JointMember
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import printing
from aiperf_svc.runner.common_start import Offset
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome, own_part

_ORDER = (
    ExitCode.LEAKED,
    ExitCode.INTERRUPTED,
    ExitCode.ERROR,
    ExitCode.BENCHMARK_FAILED,
    ExitCode.VERDICT_INVALID,
    ExitCode.SLO_MISSED,
)


@dataclass(frozen=True, kw_only=True)
class JointRun:
    """One of the runs when it has ended."""

    name: str
    where: str
    """The context of its cluster, or the address of its target."""
    outcome: RunOutcome
    offset: Offset | None = None
    """Its clock, if it was given a start."""


def finish(
    kind: Literal["clusters", "targets"],
    name: str,
    folder: Path,
    runs: Sequence[JointRun],
    options: RunOptions,
) -> ExitCode:
    """Write and print the joint result of the runs whose folders are in `folder`."""
    code = joint_exit_code([run.outcome for run in runs])
    joint = join(kind, name, int(code), [_finished(run, folder) for run in runs])
    try:
        write_joint(folder, joint)
    except EnvironmentProblem as error:
        print(f"error: {error}", file=sys.stderr)
        code = ExitCode.ERROR if code is ExitCode.OK else code
    _print(joint, folder, runs, options, code)
    return code


def joint_exit_code(outcomes: Sequence[RunOutcome]) -> ExitCode:
    """Return the first of these that applies to any run: something is left, the user stopped it,
    something outside the benchmark failed, a run has no results, the verdict, an SLO. If no run has
    results, it is that of the first one."""
    codes = [outcome.exit_code for outcome in outcomes]
    if ExitCode.LEAKED not in codes and all(each.summary is None for each in outcomes):
        return codes[0]
    # A run without results is a hole in the joint result, whatever the reason.
    codes = [
        ExitCode.BENCHMARK_FAILED
        if each.summary is None and code not in (ExitCode.LEAKED, ExitCode.INTERRUPTED)
        else code
        for each, code in zip(outcomes, codes, strict=True)
    ]
    return next((code for code in _ORDER if code in codes), ExitCode.OK)


def _finished(run: JointRun, folder: Path) -> FinishedMember:
    outcome, offset = run.outcome, run.offset
    own = own_part(outcome.summary or {})
    where = outcome.artifacts
    member = JointMember(
        name=run.name,
        where=run.where,
        folder=str(where.relative_to(folder)) if where is not None else "",
        stack=str(outcome.more.get("stack", "")),
        state=outcome.state,
        reason=outcome.reason,
        exit_code=int(outcome.exit_code),
        verdict=own.get("verdict"),
        cause=str(own.get("cause") or ""),
        clock_ahead_ms=offset.ns / 1e6 if offset else None,
        clock_uncertainty_ms=offset.uncertainty_ns / 1e6 if offset else None,
    )
    return FinishedMember(
        member=member,
        summary=outcome.summary,
        folder=where,
        ahead_ns=offset.ns if offset else 0,
        uncertainty_ns=offset.uncertainty_ns if offset else 0,
    )


def _print(
    joint: Joint, folder: Path, runs: Sequence[JointRun], options: RunOptions, code: ExitCode
) -> None:
    from rich.console import Console

    from aiperf_svc.runner.joint_tables import print_joint

    stream = sys.stderr if options.json else sys.stdout
    width = None if stream.isatty() else printing.WIDTH
    console = Console(file=stream, width=width, highlight=False, markup=False)
    print_joint(joint, console)
    for run in runs:
        if run.outcome.left:
            console.print(f"{run.name}: left behind: {', '.join(run.outcome.left)}")
    console.print(f"results: {folder}", soft_wrap=True)
    if options.json:
        content = {
            "exit_code": int(code),
            "artifacts": str(folder),
            "members": [
                {**run.outcome.as_json(), "name": run.name, "results": None} for run in runs
            ],
            "results": msgspec.to_builtins(joint),
        }
        printing.print_json(content)
