"""`joint.json` and `joint.csv`: several simultaneous runs, with a column for each run and for the
total. In an experiment, they have the trials of each run and of the total."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import asdict

from aiperf_svc import __version__
from aiperf_svc.adapters.exports.experiment_export import (
    combination_result,
    csv_head,
    csv_row,
    experiment_numbers,
)
from aiperf_svc.adapters.exports.experiment_file import search_json
from aiperf_svc.adapters.exports.file_content import csv_file
from aiperf_svc.core.experiments.experiment_result import CombinationResult, ExperimentNumbers
from aiperf_svc.core.experiments.joint_trials import ExperimentMember, JointExperiment
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.joint_result import Joint, MemberEnd, rows
from aiperf_svc.domain.foreign_text import csv_cell


def render_csv(joint: Joint) -> bytes:
    """Render joint.csv: a row for each statistic."""
    members = (csv_cell(each.name) for each in joint.members)
    lines: list[Sequence[object]] = [("metric", "unit", *members, "total")]
    for row in rows(joint, is_short=False):
        lines.append([csv_cell(row.name), csv_cell(row.unit), *row.values, row.total])
    return csv_file(lines)


EXPERIMENT_SCHEMA = "joint-experiment/1"
TOTAL = "total"


class MemberResult(MemberEnd, frozen=True, kw_only=True):
    """One of the runs of an experiment."""

    combinations: tuple[CombinationResult, ...]


class TrialStart(msgspec.Struct, frozen=True, kw_only=True):
    """The starts of a trial in all runs, and the time in which all of them are under load."""

    number: int
    total_of: tuple[str, ...]
    """Names of the runs in the trial's total."""
    start_spread_ms: float | None
    """Time from the first request of the first run to that of the last run, accurate to
    `start_uncertainty_ms`."""
    start_uncertainty_ms: float | None
    interval_s: float | None
    notes: tuple[str, ...]


class JointExperimentResult(msgspec.Struct, frozen=True, kw_only=True):
    """Content of joint.json of an experiment. Each run's trials are in its own folder."""

    schema_version: str = EXPERIMENT_SCHEMA
    version: str
    kind: Literal["clusters", "targets", "models"]
    name: str
    exit_code: int
    notes: tuple[str, ...]
    members: tuple[MemberResult, ...]
    starts: tuple[TrialStart, ...]
    search: SearchReport | None = None
    total: ExperimentNumbers
    """The total of all runs, as an experiment."""


def export_experiment(joint: JointExperiment) -> dict[str, object]:
    """Return the content of joint.json of an experiment."""
    result = JointExperimentResult(
        version=__version__,
        kind=joint.kind,
        name=joint.name,
        exit_code=joint.exit_code,
        notes=joint.notes,
        members=tuple(map(_member, joint.members)),
        starts=tuple(_start(trial, each) for trial, each in joint.trials),
        total=experiment_numbers(joint.total, joint.search),
    )
    return asdict(result) | {"search": search_json(joint.search)}


def render_experiment_json(joint: JointExperiment) -> bytes:
    return msgspec.json.encode(export_experiment(joint)) + b"\n"


def render_experiment_csv(joint: JointExperiment) -> bytes:
    """Render joint.csv: a row for each trial of each run, and for its total."""
    parts = [*((each.name, each.summary) for each in joint.members), (TOTAL, joint.total)]
    names = list(dict.fromkeys(p.name for _, each in parts for p in each.parameters))
    keys = list(dict.fromkeys(key for _, each in parts for key in each.keys))
    head = (joint.kind.removesuffix("s"), *csv_head(names, keys))
    rows = ((name, *csv_row(row, names, keys)) for name, each in parts for row in each.rows)
    return csv_file([head, *rows])


def _member(each: ExperimentMember) -> MemberResult:
    own = {name: getattr(each, name) for name in MemberEnd.__struct_fields__}
    combinations = tuple(map(combination_result, each.summary.combinations))
    return MemberResult(**own, combinations=combinations)


def _start(trial: Trial, joint: Joint) -> TrialStart:
    return TrialStart(
        number=trial.number,
        total_of=joint.total_of,
        start_spread_ms=joint.start_spread_ms,
        start_uncertainty_ms=joint.start_uncertainty_ms,
        interval_s=joint.interval_s,
        notes=joint.notes,
    )
