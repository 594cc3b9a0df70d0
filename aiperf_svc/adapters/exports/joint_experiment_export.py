"""`joint.json` and `joint.csv` of an experiment that several runs went through at the same time."""

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
from aiperf_svc.core.results.joint_result import Joint

SCHEMA = "joint-experiment/1"
TOTAL = "total"


def export(joint: JointExperiment) -> dict[str, object]:
    """Return the content of joint.json as an object. The trials of each run are in its folder."""
    return {
        "schema_version": SCHEMA,
        "version": __version__,
        "kind": joint.kind,
        "name": joint.name,
        "exit_code": joint.exit_code,
        "notes": joint.notes,
        "members": [_member(each) for each in joint.members],
        "starts": [_start(trial, each) for trial, each in joint.trials],
        "total": experiment_numbers(joint.total),
    }


def render_json(joint: JointExperiment) -> bytes:
    """Render joint.json."""
    return msgspec.json.encode(export(joint)) + b"\n"


def render_csv(joint: JointExperiment) -> bytes:
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
