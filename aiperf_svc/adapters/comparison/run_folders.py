"""Finds the runs that a comparison is given, and reads each by its kind. Every problem is one line
that names the folder or file."""

from collections.abc import Callable, Sequence
from pathlib import Path

from aiperf_svc.adapters.comparison import inference_run, workload_run
from aiperf_svc.adapters.comparison.experiment_folders import read_experiment
from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.core.compare.measured_run import INFERENCE, MeasuredRun
from aiperf_svc.domain.errors import ConfigError

_READERS = {inference_run.NAME: inference_run.read, workload_run.NAME: workload_run.read}
"""Reader by the file that holds a run's results."""


def read_runs(folders: Sequence[Path]) -> list[MeasuredRun]:
    """Read all runs in these folders, without single requests. Raises ConfigError."""
    return [_reader(folder)(folder) for folder in folders]


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
        elif _is_run(folder):
            runs = [folder]
        else:
            runs = sorted(filter(_is_run, folder.iterdir()))
        if not runs:
            raise ConfigError(
                f"{folder}: no run; expected {' or '.join(_READERS)} in it, or folders with one"
            )
        found += runs
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _READERS)


def _reader(folder: Path) -> Callable[[Path], MeasuredRun]:
    return next(read for name, read in _READERS.items() if (folder / name).is_file())
