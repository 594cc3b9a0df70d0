"""The files of an experiment, and the same results in AIPerf's layout.

    trials/<trial>/                     a run's folder for each trial
    experiment.json, .csv, .parquet     a row for each trial
    report.html
    qualify.json, .csv                  of a qualification
    profile_runs/run_0001               links to the trials
    aggregate/[<combination>/]          profile_export_aiperf_aggregate.json and .csv
    sweep_aggregate/                    profile_export_aiperf_sweep.json and .csv

Every file is written atomically.
"""

import errno
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports import aiperf_sweep_export, experiment_export, qualify_export
from aiperf_svc.adapters.exports.experiment_file import (
    NAME,
    encode,
    is_experiment,
    read_experiment_file,
)
from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX
from aiperf_svc.adapters.exports.result_files import decode_run, find_results
from aiperf_svc.adapters.report import experiment_page, qualify_page
from aiperf_svc.adapters.storage.atomic_files import unwritable, write_atomically, write_file
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.experiment_result import ExperimentResult, TrialResult
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.experiments.trials import TRIALS, Trial
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.protocol.run_states import RunState

RUNS = "profile_runs"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without symbolic links."""


def write_experiment(
    folder: Path, config: Config, summary: ExperimentSummary, search: SearchReport | None = None
) -> ExperimentResult:
    """Write the files of an experiment, except those of its trials, and return its results. Raises
    EnvironmentProblem."""
    results = experiment_export.experiment_result(summary, config, search)
    write_file(folder / NAME, lambda: encode(results) + b"\n")
    write_file(folder / "experiment.csv", lambda: experiment_export.render_csv(summary))
    write_links(folder, {row.number: row.outcome.folder for row in summary.rows})
    write_atomically(
        folder / "experiment.parquet", lambda part: experiment_export.write_parquet(part, summary)
    )
    _write_aggregates(folder, summary, search)
    found = results.qualification
    if found is None:
        write_file(folder / "report.html", lambda: experiment_page.render(summary, config, search))
        return results
    write_file(folder / qualify_export.JSON_NAME, lambda: json_file(found))
    write_file(folder / qualify_export.CSV_NAME, lambda: qualify_export.render_csv(found))
    write_file(folder / "report.html", lambda: qualify_page.render(found, summary, config))
    return results


def read_outcomes(folder: Path, trials: Iterable[TrialResult]) -> list[TrialOutcome]:
    """Return the trials of an experiment with their measurements, from its folder. A trial without
    results has no measurements, and one with unreadable results has failed."""
    return [_read_outcome(folder / TRIALS / each.folder, each) for each in trials]


def read_finished(folder: Path) -> list[TrialOutcome]:
    """Return the finished trials with results in the folder of an experiment, in the order of
    execution; empty for any other folder. Raises ConfigError."""
    entries = read_experiment_file(folder).trials if is_experiment(folder) else ()
    return [
        each
        for each in read_outcomes(folder, entries)
        if each.state == RunState.DONE and each.results is not None
    ]


def _read_outcome(folder: Path, entry: TrialResult) -> TrialOutcome:
    state, reason = entry.state, entry.reason
    try:
        results = _results_in(folder)
    except (msgspec.DecodeError, ValueError) as error:
        results, state, reason = None, RunState.FAILED, f"its results cannot be read: {error}"
    trial = Trial(entry.number, entry.parameters, entry.repetition)
    return TrialOutcome(trial, state, reason, results, entry.folder, entry.replaced)


def _results_in(folder: Path) -> RunResult | None:
    path = find_results(folder)
    return None if path is None else decode_run(path.read_bytes())


def _write_aggregates(
    folder: Path, summary: ExperimentSummary, search: SearchReport | None
) -> None:
    export = aiperf_sweep_export
    for name, combination in zip(
        export.combination_names(summary), summary.combinations, strict=True
    ):
        if not combination.values or len(combination.rows) == 1:
            continue  # AIPerf's plots would show a single run twice
        stem = folder / "aggregate" / name / "profile_export_aiperf_aggregate"
        as_json, as_csv = export.render_aggregate_json, export.render_aggregate_csv
        write_file(stem.with_suffix(".json"), partial(as_json, summary, combination))
        write_file(stem.with_suffix(".csv"), partial(as_csv, summary, combination))
    if summary.parameters:
        stem = folder / "sweep_aggregate" / "profile_export_aiperf_sweep"
        write_file(stem.with_suffix(".json"), lambda: export.render_sweep_json(summary, search))
        write_file(stem.with_suffix(".csv"), lambda: export.render_sweep_csv(summary, search))


def write_links(folder: Path, folders: dict[int, str]) -> None:
    """Link AIPerf's run names to the folders of these trials, by number. Raises
    EnvironmentProblem."""
    for number, name in folders.items():
        target = Path("..") / TRIALS / name
        link = folder / RUNS / aiperf_sweep_export.run_label(number)
        try:
            if not link.is_symlink() or link.readlink() != target:
                _replace_link(link, target)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return
            raise unwritable(link, error) from error


def _replace_link(link: Path, target: Path) -> None:
    link.parent.mkdir(exist_ok=True)
    part = link.with_name(link.name + TEMPORARY_SUFFIX)
    part.unlink(missing_ok=True)
    part.symlink_to(target, target_is_directory=True)
    part.replace(link)
