"""`joint.json` and `joint.csv`: several runs at once, with a column for each and for the total; of
an experiment, the trials of each run and of the total."""

import csv
from io import StringIO

import msgspec

from aiperf_svc import __version__
from aiperf_svc.adapters.exports.experiment_export import (
    combination_result,
    csv_head,
    csv_row,
    experiment_numbers,
)
from aiperf_svc.core.experiments.joint_trials import ExperimentMember, JointExperiment
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.joint_result import Joint, rows
from aiperf_svc.domain.foreign_text import csv_cell


def render_json(joint: Joint) -> bytes:
    """Render joint.json."""
    return msgspec.json.format(msgspec.json.encode(joint), indent=1) + b"\n"


def render_csv(joint: Joint) -> bytes:
    """Render joint.csv: a row for each statistic."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "unit", *(csv_cell(m.name) for m in joint.members), "total"])
    for row in rows(joint, is_short=False):
        cells = ("" if value is None else value for value in (*row.values, row.total))
        writer.writerow([csv_cell(row.name), csv_cell(row.unit), *cells])
    return text.getvalue().encode()


EXPERIMENT_SCHEMA = "joint-experiment/1"
TOTAL = "total"


def export_experiment(joint: JointExperiment) -> dict[str, object]:
    """Return the content of joint.json as an object. The trials of each run are in its folder."""
    return {
        "schema_version": EXPERIMENT_SCHEMA,
        "version": __version__,
        "kind": joint.kind,
        "name": joint.name,
        "exit_code": joint.exit_code,
        "notes": joint.notes,
        "members": [_member(each) for each in joint.members],
        "starts": [_start(trial, each) for trial, each in joint.trials],
        "total": experiment_numbers(joint.total),
    }


def render_experiment_json(joint: JointExperiment) -> bytes:
    """Render joint.json."""
    return msgspec.json.encode(export_experiment(joint)) + b"\n"


def render_experiment_csv(joint: JointExperiment) -> bytes:
    """Render joint.csv: a row for each trial of each run, and for its total."""
    parts = [*((each.name, each.summary) for each in joint.members), (TOTAL, joint.total)]
    names = list(dict.fromkeys(p.name for _, each in parts for p in each.parameters))
    keys = list(dict.fromkeys(key for _, each in parts for key in each.keys))
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((joint.kind.removesuffix("s"), *csv_head(names, keys)))
    for name, summary in parts:
        writer.writerows((name, *csv_row(row, names, keys)) for row in summary.rows)
    return text.getvalue().encode()


def _member(each: ExperimentMember) -> dict[str, object]:
    return {
        "name": each.name,
        "where": each.where,
        "folder": each.folder,
        "stack": each.stack,
        "state": each.state,
        "reason": each.reason,
        "exit_code": each.exit_code,
        "combinations": [combination_result(c) for c in each.summary.combinations],
    }


def _start(trial: Trial, joint: Joint) -> dict[str, object]:
    """How close the starts of a trial were, in ms, and the time that its loads have in common."""
    return {
        "number": trial.number,
        "total_of": joint.total_of,
        "start_spread_ms": joint.start_spread_ms,
        "start_uncertainty_ms": joint.start_uncertainty_ms,
        "interval_s": joint.interval_s,
        "notes": joint.notes,
    }
