"""Joins the results of runs that measured at the same time: one result, its files, one exit code.

Each trial of an experiment is joined separately, and the totals form an experiment of their own.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from aiperf_svc.adapters.exports import joint_export
from aiperf_svc.adapters.exports.experiment_file import is_experiment as is_experiment_folder
from aiperf_svc.adapters.exports.experiment_file import read_experiment_file
from aiperf_svc.adapters.storage.experiment_artifacts import read_outcomes
from aiperf_svc.adapters.storage.joint_artifacts import (
    FinishedMember,
    join,
    write_joint,
    write_joint_experiment,
)
from aiperf_svc.adapters.terminal.joint_tables import print_joint, print_joint_experiment
from aiperf_svc.adapters.terminal.output import console_on, print_json
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.experiment_result import ExperimentResult, TrialResult
from aiperf_svc.core.experiments.joint_trials import (
    ExperimentMember,
    JointExperiment,
    total_outcome,
)
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import row_of, summarise_rows
from aiperf_svc.core.experiments.trials import TRIALS, Trial, describe
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.joint_result import Joint, JointMember
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import lines
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.ending import write_junit
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import JointRun, Kind

if TYPE_CHECKING:
    from rich.console import Console

_DECISIVE = (ExitCode.LEAKED, ExitCode.UNVERIFIED, ExitCode.INTERRUPTED)
"""Exit codes of one run that decide the joint exit code, whatever the results."""
_PRECEDENCE = (
    *_DECISIVE,
    ExitCode.ERROR,
    ExitCode.BENCHMARK_FAILED,
    ExitCode.VERDICT_INVALID,
    ExitCode.SLO_MISSED,
    ExitCode.SLO_NOT_JUDGED,
)


def finish(
    kind: Kind,
    name: str,
    folder: Path,
    runs: Sequence[JointRun],
    options: RunOptions,
) -> ExitCode:
    """Write and print the joint result of the runs whose folders are in `folder`."""
    content: object
    write: Callable[[], None]
    show: Callable[[Console], None]
    if any(isinstance(run.outcome.results, ExperimentResult) for run in runs):
        experiment = join_experiment(kind, name, folder, runs)
        code = ExitCode(experiment.exit_code)
        content = joint_export.export_experiment(experiment)
        write = partial(write_joint_experiment, folder, experiment)
        show = partial(print_joint_experiment, experiment, folder)
    else:
        content = joint = _join_runs(kind, name, folder, runs)
        code = ExitCode(joint.exit_code)
        write, show = partial(write_joint, folder, joint), partial(print_joint, joint)
    try:
        write()
    except EnvironmentProblem as error:
        print(f"error: {error}", file=sys.stderr)
        code = ExitCode.ERROR if code is ExitCode.OK else code
    with console_on(sys.stderr if options.json else sys.stdout) as console:
        show(console)
        for run in runs:
            outcome = run.outcome
            if outcome.artifact_error:
                text = f"{run.name}: error: {lines(outcome.artifact_error)}"
                console.print(text, style="bold red", soft_wrap=True)
            if outcome.uploaded_to:
                console.print(f"{run.name}: uploaded: {outcome.uploaded_to}/", soft_wrap=True)
            if outcome.left:
                console.print(f"{run.name}: left behind: {', '.join(outcome.left)}")
        console.print(f"results: {folder}", soft_wrap=True)
    if options.json:
        members = [{**run.outcome.as_json(), "name": run.name, "results": None} for run in runs]
        whole = {"exit_code": int(code), "artifacts": str(folder), "members": members}
        print_json(whole | {"results": content})
    reasons = (f"{run.name}: {run.outcome.why}" for run in runs if run.outcome.why)
    write_junit(folder, code, "; ".join(reasons), options)
    return code


def total_of(runs: Sequence[JointRun], folder: Path, trial: Trial) -> RunResult | None:
    """Return the total results of a trial over all runs; None if a run has none."""
    return total_outcome(trial, _join_runs("targets", "", folder, runs, trial.number)).results


# --- one run -------------------------------------------------------------------------------------


def joint_exit_code(outcomes: Sequence[RunOutcome]) -> ExitCode:
    """Return the code of the first condition that holds for any run: objects are left or may be
    left, the user stopped it, something outside the benchmark failed, a run has no results, the
    verdict, an SLO. If no run has results, the first run decides."""
    codes = [outcome.exit_code for outcome in outcomes]
    if not {ExitCode.LEAKED, ExitCode.UNVERIFIED} & {*codes}:
        if any(each.is_unverified for each in outcomes):
            return ExitCode.ERROR
        if all(each.results is None for each in outcomes):
            return codes[0]
    # A run without results is missing from the joint result.
    codes = [
        ExitCode.BENCHMARK_FAILED if each.results is None and code not in _DECISIVE else code
        for each, code in zip(outcomes, codes, strict=True)
    ]
    return next((code for code in _PRECEDENCE if code in codes), ExitCode.OK)


def _exit_code(runs: Sequence[JointRun], joints: Iterable[Joint], *, is_readable: bool) -> int:
    """Return the joint exit code: an error if a run or its records cannot be read, unless a worse
    code applies."""
    code = joint_exit_code([run.outcome for run in runs])
    has_problem = any(member.problem for joint in joints for member in joint.members)
    is_worse = code in _DECISIVE
    return int(code if is_worse or (is_readable and not has_problem) else ExitCode.ERROR)


def _join_runs(
    kind: Kind, title: str, folder: Path, runs: Sequence[JointRun], trial: int = 1
) -> Joint:
    """Return the joint result of the runs, or of one of their trials. Its files are in `folder`."""
    joint = join(kind, title, [_finished_member(run, folder, trial) for run in runs])
    return replace(joint, exit_code=_exit_code(runs, [joint], is_readable=True))


def _finished_member(run: JointRun, folder: Path, trial: int) -> FinishedMember:
    """Return a run, which is this trial of an experiment, as a member of the joint result in
    `folder`."""
    outcome, offset = run.outcome, run.offset(trial)
    results = outcome.results
    member = JointMember(
        **_end_fields(run, folder),
        verdict=results.verdict if results is not None else None,
        cause=results.cause if results is not None else "",
        clock_ahead_ms=offset.ns / 1e6 if offset else None,
        clock_uncertainty_ms=offset.uncertainty_ns / 1e6 if offset else None,
    )
    return FinishedMember(
        member=member,
        results=results if isinstance(results, RunResult) else None,
        folder=outcome.artifacts,
        ahead_ns=offset.ns if offset else 0,
    )


def _end_fields(run: JointRun, folder: Path) -> dict[str, Any]:
    """Return the `MemberEnd` fields of a run for the joint result in `folder`."""
    outcome, where = run.outcome, run.outcome.artifacts
    return {
        "name": run.name,
        "where": run.where,
        "folder": os.path.relpath(where, folder) if where is not None else "",
        "stack": str(outcome.more.get("stack", "")),
        "state": outcome.state,
        "reason": outcome.reason,
        "exit_code": int(outcome.exit_code),
    }


# --- an experiment -------------------------------------------------------------------------------


class _Member(NamedTuple):
    run: JointRun
    entries: dict[int, TrialResult]
    """Its finished trials, by number."""
    rows: list[TrialRow]
    problem: str
    """Why its trials cannot be read."""


def join_experiment(
    kind: Kind, name: str, folder: Path, runs: Sequence[JointRun]
) -> JointExperiment:
    """Join the runs trial by trial, from their folders. `folder` is that of the joint result. A run
    whose trials cannot be read is left out of all totals and named in the notes."""
    members = [_read_member(run) for run in runs]
    known = {n: each for member in members for n, each in member.entries.items()}
    # A run without finished trials is missing from all totals.
    present = [each for each in members if each.entries]
    missing = [each.run.name for each in members if not each.entries]
    trials: list[tuple[Trial, Joint]] = []
    totals: list[TrialRow] = []
    for number, entry in sorted(known.items()):
        trial = Trial(number, entry.parameters, entry.repetition)
        joint, total = _join_trial(kind, name, trial, present, folder)
        trials.append((trial, joint))
        totals.append(row_of(total))
    notes = [f"the total is without {', '.join(missing)}"] if missing else []
    problems = [f"{each.run.name}: {each.problem}" for each in members if each.problem]
    found = (run.outcome.results for run in runs)
    searches = (each.search for each in found if isinstance(each, ExperimentResult))
    return JointExperiment(
        kind=kind,
        name=name,
        exit_code=_exit_code(runs, (joint for _, joint in trials), is_readable=not problems),
        members=tuple(
            ExperimentMember(**_end_fields(each.run, folder), summary=summarise_rows(each.rows))
            for each in members
        ),
        trials=tuple(trials),
        total=summarise_rows(totals),
        search=next(searches, None),
        notes=(*notes, *problems),
    )


def _read_member(run: JointRun) -> _Member:
    folder, found, problem = run.outcome.artifacts, dict[int, TrialResult](), ""
    if folder is not None and is_experiment_folder(folder):
        try:
            found = {each.number: each for each in read_experiment_file(folder).trials}
        except ConfigError as error:
            problem = str(error)
    return _Member(run, found, [], problem)


def _join_trial(
    kind: Kind,
    name: str,
    trial: Trial,
    members: Sequence[_Member],
    folder: Path,
) -> tuple[Joint, TrialOutcome]:
    """Join one trial. Only its numbers stay in memory."""
    runs = [dataclasses.replace(m.run, outcome=_outcome(m, trial)) for m in members]
    found = {run.name: run.outcome.results for run in runs}
    results = {name: own for name, own in found.items() if isinstance(own, InferenceResult)}
    named = describe(trial.parameters)
    title = f"{name}, trial {trial.number}" + (f" ({named})" if named else "")
    joint = _join_runs(kind, title, folder / TRIALS / trial.folder, runs, trial.number)
    return joint, total_outcome(trial, joint, results)


def _outcome(member: _Member, trial: Trial) -> RunOutcome:
    """Return the outcome of a trial in one of the runs."""
    whole, entry = member.run.outcome, member.entries.get(trial.number)
    if entry is None:
        reason = ": ".join(filter(None, ("not started", whole.reason)))
        return RunOutcome(
            run_id=whole.run_id, state=RunState.FAILED, reason=reason, more=whole.more
        )
    assert whole.artifacts is not None
    (found,) = read_outcomes(whole.artifacts, (entry,))
    member.rows.append(row_of(found))
    artifacts = whole.artifacts / TRIALS / entry.folder
    return RunOutcome(
        run_id=whole.run_id,
        state=found.state,
        reason=found.reason,
        results=found.results,
        artifacts=artifacts if artifacts.is_dir() else None,
        more=whole.more,
    )
