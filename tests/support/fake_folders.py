"""Folders with the files of made-up runs and experiments."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import row_of, summarise_rows
from aiperf_svc.core.experiments.trials import TRIALS, Trial
from aiperf_svc.core.results.summarise import summarise
from tests.support import fake_run


def write_run(folder: Path, name: str, count: int) -> dict[str, Any]:
    """Write the files of a run of so many requests, and return its summary."""
    rows = fake_run.closed_loop(requests=count)
    columns = fake_run.columns_of(rows)
    context = replace(fake_run.context(rows), run_id=name)
    folder.mkdir(parents=True)
    write_all(folder, summarise(columns, None, context), columns)
    content: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_bytes())
    return content


def write_trials(folder: Path, *counts: int) -> dict[str, Any]:
    """Write an experiment whose trials have so many requests, and return its content; a trial with
    none has failed."""
    rows = []
    for number, count in enumerate(counts, start=1):
        trial = Trial(number, {"load.concurrency": number})
        summary = write_run(folder / TRIALS / trial.folder, folder.name, count) if count else None
        state, reason = ("done", "") if count else ("failed", "a worker was lost")
        rows.append(row_of(TrialOutcome(trial, state, reason, summary)))
    write_experiment(folder, fake_run.config(), summarise_rows(rows))
    content: dict[str, Any] = json.loads((folder / "experiment.json").read_bytes())
    return content
