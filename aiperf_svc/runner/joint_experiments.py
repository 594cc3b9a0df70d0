"""Joins the trials of an experiment that several runs went through at the same time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from aiperf_svc.adapters.exports.experiment_file import (
    TrialEntry,
    is_experiment,
    read_experiment_file,
)
from aiperf_svc.adapters.storage.experiment_artifacts import read_outcomes
from aiperf_svc.adapters.storage.joint_artifacts import join
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.joint_trials import (
    ExperimentMember,
    JointExperiment,
    Objectives,
    total_outcome,
)
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import row_of, summarise_rows
from aiperf_svc.core.experiments.trials import TRIALS, Trial, describe
from aiperf_svc.core.results.joint_result import Joint
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.joint_runs import (
    JointRun,
    finished_member,
    joint_exit_code,
    raised_to_error,
    with_unreadable,
)
from aiperf_svc.runner.outcome import RunOutcome


class _Member(NamedTuple):
    run: JointRun
    entries: dict[int, TrialEntry]
    """Its trials that have ended, by number."""
    rows: list[TrialRow]
    problem: str
    """Why its trials cannot be read."""


def join_experiment(
    kind: Literal["clusters", "targets"],
    name: str,
    exit_code: ExitCode,
    folder: Path,
    runs: Sequence[JointRun],
) -> JointExperiment:
    """Return what the runs are together, trial by trial, from their folders; that of the joint
    result is `folder`. A run whose trials cannot be read is in no total, and says so."""
    members = [_member(run) for run in runs]
    known = {n: each for member in members for n, each in member.entries.items()}
    # A run of which no trial has ended is missing in all totals alike.
    there = [each for each in members if each.entries]
    missing = [each.run.name for each in members if not each.entries]
    trials: list[tuple[Trial, Joint]] = []
    totals: list[TrialRow] = []
    for number, entry in sorted(known.items()):
        trial = Trial(number, entry.parameters, entry.repetition)
        joint, total = _join_trial(kind, name, trial, there, folder)
        trials.append((trial, joint))
        totals.append(row_of(total))
    notes = [f"the total is without {', '.join(missing)}"] if missing else []
    problems = [f"{each.run.name}: {each.problem}" for each in members if each.problem]
    if problems:
        exit_code = raised_to_error(exit_code)
    return JointExperiment(
        kind=kind,
        name=name,
        exit_code=int(with_unreadable(exit_code, (joint for _, joint in trials))),
        members=tuple(_ended(each, folder) for each in members),
        trials=tuple(trials),
        total=summarise_rows(totals),
        notes=(*notes, *problems),
    )


def _member(run: JointRun) -> _Member:
    folder = run.outcome.artifacts
    if folder is None or not is_experiment(folder):
        return _Member(run, {}, [], "")
    try:
        trials = read_experiment_file(folder).trials
    except ConfigError as error:
        return _Member(run, {}, [], str(error))
    return _Member(run, {each.number: each for each in trials}, [], "")


def _join_trial(
    kind: Literal["clusters", "targets"],
    name: str,
    trial: Trial,
    members: Sequence[_Member],
    folder: Path,
) -> tuple[Joint, TrialOutcome]:
    """Join one trial. Nothing of it but its numbers is kept."""
    runs: list[JointRun] = []
    objectives: dict[str, Objectives] = {}
    for member in members:
        outcome = _outcome(member, trial)
        results = outcome.results
        objectives[member.run.name] = results.slo if isinstance(results, RunResult) else ()
        runs.append(
            JointRun(
                name=member.run.name,
                where=member.run.where,
                outcome=outcome,
                offsets=member.run.offsets,
            )
        )
    own, code = folder / TRIALS / trial.folder, joint_exit_code([each.outcome for each in runs])
    joint = join(
        kind,
        " ".join(filter(None, (f"{name}, trial {trial.number}", _said(trial)))),
        int(code),
        [finished_member(each, own, trial.number) for each in runs],
    )
    joint = replace(joint, exit_code=int(with_unreadable(code, [joint])))
    return joint, total_outcome(trial, joint, objectives)


def _said(trial: Trial) -> str:
    named = describe(trial.parameters)
    return f"({named})" if named else ""


def _outcome(member: _Member, trial: Trial) -> RunOutcome:
    """Return what became of a trial in one of the runs."""
    whole, entry = member.run.outcome, member.entries.get(trial.number)
    if entry is None:
        return RunOutcome(
            run_id=whole.run_id,
            state=RunState.FAILED,
            reason=": ".join(filter(None, ("not begun", whole.reason))),
            results=None,
            artifacts=None,
            more=whole.more,
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


def _ended(member: _Member, folder: Path) -> ExperimentMember:
    outcome = member.run.outcome
    where = outcome.artifacts
    return ExperimentMember(
        name=member.run.name,
        where=member.run.where,
        folder=str(where.relative_to(folder)) if where is not None else "",
        stack=str(outcome.more.get("stack", "")),
        state=outcome.state,
        reason=outcome.reason,
        exit_code=int(outcome.exit_code),
        summary=summarise_rows(member.rows),
    )
