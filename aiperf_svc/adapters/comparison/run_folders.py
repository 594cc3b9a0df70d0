"""Finds the runs that a comparison is given, and reads each by its kind. Every problem is one line
that names the folder or file."""

from collections.abc import Sequence
from pathlib import Path

from aiperf_svc.adapters.comparison import inference_run, tool_run
from aiperf_svc.adapters.comparison.experiment_folders import read_experiment
from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.adapters.exports.result_files import FILES, find_results, read_run
from aiperf_svc.core.compare.measured_run import MeasuredRun
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import INFERENCE
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.domain.errors import ConfigError


def read_runs(folders: Sequence[Path]) -> list[MeasuredRun]:
    """Read all runs in these folders, without single requests. Raises ConfigError."""
    return [_measured(folder) for folder in folders]


def _measured(folder: Path) -> MeasuredRun:
    path = find_results(folder)
    if path is None:
        raise ConfigError(f"{folder}: no run; expected {' or '.join(FILES)} in it")
    match read_run(path):
        case InferenceResult() as result:
            return inference_run.measured_run(folder, result)
        case ToolResult() as result:
            return tool_run.measured_run(folder, result)
        case other:
            raise TypeError(type(other))


def with_requests(runs: Sequence[MeasuredRun], *, batches: bool, curves: bool) -> list[MeasuredRun]:
    """Return the runs with what needs their single requests; those without any, and those that are
    not compared, as they are. Raises ConfigError."""
    return [
        inference_run.with_requests(run, batches=batches, curves=curves)
        if run.kind == INFERENCE and run.is_usable
        else run
        for run in runs
    ]


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the runs' folders: each given folder, those directly in it, or the trials of an
    experiment. Raises ConfigError."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        if is_experiment(folder):
            runs = [trial.folder for trial in read_experiment(folder)]
        elif find_results(folder):
            runs = [folder]
        else:
            runs = sorted(filter(find_results, folder.iterdir()))
        if not runs:
            raise ConfigError(
                f"{folder}: no run; expected {' or '.join(FILES)} in it, or folders with one"
            )
        found += runs
    return found
