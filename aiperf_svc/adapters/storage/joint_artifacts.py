"""The folder of several simultaneous runs: the folder of each run, and their joint result.

<name>/         the folder of a run, or of an experiment, for each of them
joint.json      a column for each run and their total; in an experiment, the trials of each run
joint.csv       and of the total
report.html
trials/<trial>/ in an experiment: these three files for each trial
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from aiperf_svc.adapters.exports import joint_export
from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.parquet_export import check_records, read_clocks, read_records
from aiperf_svc.adapters.exports.result_files import JOINT_FILE
from aiperf_svc.adapters.report import joint_page
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.core.experiments.joint_trials import JointExperiment
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.joint import JoinedRun, add_up_parts, spread_ns
from aiperf_svc.core.results.joint_result import Joint, JointMember, worst
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.results.summary import metric_stats
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.metric_catalog import CATALOG, Kind

RECORDS = "records.parquet"
NO_RECORDS = "the total is not known: no run has records"


class FinishedMember(NamedTuple):
    """One of the runs after all have ended."""

    member: JointMember
    """The member without its metrics."""
    results: RunResult | None
    folder: Path | None
    ahead_ns: int


def write_joint(folder: Path, joint: Joint) -> None:
    """Write the files of all runs together. Raises EnvironmentProblem."""
    write_file(folder / JOINT_FILE, lambda: json_file(joint))
    write_file(folder / "joint.csv", lambda: joint_export.render_csv(joint))
    write_file(folder / "report.html", lambda: joint_page.render(joint))


def write_joint_experiment(folder: Path, joint: JointExperiment) -> None:
    """Write the files of all runs of an experiment together. Raises EnvironmentProblem."""
    for trial, each in joint.trials:
        write_joint(folder / TRIALS / trial.folder, each)
    write_file(folder / JOINT_FILE, lambda: joint_export.render_experiment_json(joint))
    write_file(folder / "joint.csv", lambda: joint_export.render_experiment_csv(joint))
    write_file(folder / "report.html", lambda: joint_page.render_experiment(joint))


def join(
    kind: Literal["clusters", "targets"], name: str, finished: Sequence[FinishedMember]
) -> Joint:
    """Return the joint result of runs, from their results and the records in their folders. A run
    with unreadable records is not in the total and has a note. The exit code is not set."""
    members: list[JointMember] = []
    counted: list[FinishedMember] = []
    parts: list[JoinedRun] = []
    for each in finished:
        problem = ""
        # A run without a summary ended while its files were written.
        if each.folder and each.results and (each.folder / RECORDS).is_file():
            try:
                parts.append(_part(each))
                counted.append(each)
            except EnvironmentProblem as error:
                problem = str(error)
        metrics = {} if each.results is None else dict(each.results.stats)
        members.append(replace(each.member, metrics=metrics, problem=problem))
    total = add_up_parts(parts) if parts else None
    total_of = tuple(each.member.name for each in counted)
    left_out = [each.name for each in members if each.name not in total_of]
    notes = [f"the total is without {', '.join(left_out)}"] if parts and left_out else []
    notes += [f"{each.name}: {each.problem}" for each in members if each.problem]
    if total is None:
        notes.append(NO_RECORDS)
    else:
        notes += total.notes
        if not total.interval_s:
            notes.append("the loads have no time in common: the total has no rates")
    uncertainties = [
        each.member.clock_uncertainty_ms
        for each in counted
        if each.member.clock_uncertainty_ms is not None
    ]
    are_clocks_known = len(uncertainties) == len(counted) > 1
    return Joint(
        kind=kind,
        name=name,
        exit_code=0,
        verdict=worst([member.verdict or Severity.INVALID for member in members]),
        start_spread_ms=spread_ns(parts) / 1e6 if len(parts) > 1 else None,
        start_uncertainty_ms=max(uncertainties) if are_clocks_known else None,
        interval_s=total.interval_s if total is not None else None,
        total_of=total_of,
        total=metric_stats(total.metrics, total.scalars) if total is not None else {},
        cache=total.cache if total is not None else None,
        notes=tuple(notes),
        members=tuple(members),
    )


def _part(each: FinishedMember) -> JoinedRun:
    """Return a run with its records. Raises EnvironmentProblem if they cannot be read."""
    assert each.folder is not None
    assert isinstance(each.results, InferenceResult)
    path, results = each.folder / RECORDS, each.results
    check_records(path)
    sources = results.system.sources if results.system is not None else ()
    endpoint, target = results.config_view.endpoint, results.config_view.deployment.target
    return JoinedRun(
        scalars={
            tag: stats.stat("avg") or 0.0
            for tag, stats in results.stats.items()
            if CATALOG[tag].kind is Kind.SCALAR
        },
        columns=read_records(path),
        clocks=ClockMap(read_clocks(path)),
        ahead_ns=each.ahead_ns,
        begin_wall_ns=results.start_wall_ns,
        end_wall_ns=results.end_wall_ns,
        gpus=frozenset(gpu for source in sources if source.is_used for gpu in source.gpus),
        urls=(endpoint.url, *endpoint.urls) if target.kind == "none" else (),
    )
