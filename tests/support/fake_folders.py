"""Artifact folders of fake runs and experiments."""

import json
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.exports.experiment_file import NAME
from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import row_of, summarise_rows
from aiperf_svc.core.experiments.trials import TRIALS, Trial
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.summarise import summarise
from tests.support import fake_run


def write_run(folder: Path, name: str, count: int) -> InferenceResult:
    """Write the files of a run with `count` requests and return its results."""
    rows = fake_run.closed_loop(requests=count)
    columns = fake_run.columns_of(rows)
    context = replace(fake_run.context(rows), run_id=name)
    folder.mkdir(parents=True)
    summary = summarise(columns, None, context)
    write_all(folder, summary, columns)
    return result_of(summary)


def list_trials(folder: Path, trials: Iterable[tuple[Trial, str]], reason: str = "") -> None:
    """Write an experiment's file with trials and their states."""
    listed = [
        {
            "number": trial.number,
            "repetition": trial.repetition,
            "parameters": trial.parameters,
            "state": state,
            "reason": reason,
            "folder": trial.folder,
        }
        for trial, state in trials
    ]
    content = {"schema_version": "experiment/1", "version": "1", "trials": listed, "config": {}}
    (folder / NAME).write_text(json.dumps(content))


def write_trials(folder: Path, *counts: int) -> ExperimentResult:
    """Write an experiment whose trials have these numbers of requests and return its results. A
    trial with zero requests has failed."""
    rows = []
    for number, count in enumerate(counts, start=1):
        trial = Trial(number, {"load.concurrency": number})
        results = write_run(folder / TRIALS / trial.folder, folder.name, count) if count else None
        state, reason = ("done", "") if count else ("failed", "a worker was lost")
        rows.append(row_of(TrialOutcome(trial, state, reason, results)))
    return write_experiment(folder, fake_run.config(), summarise_rows(rows))
