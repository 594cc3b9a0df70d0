"""Collects the trials of an experiment with several shapes in one folder.

To the services, each shape is an experiment of its own. Their results are merged here, so the
experiment's files cover all trials.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file
from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.storage.experiment_artifacts import read_outcomes
from aiperf_svc.adapters.storage.experiment_folder import ExperimentFolder
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import EndedTrials, row_of
from aiperf_svc.core.experiments.trials import SHAPES, TRIALS
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.workloads.shapes import Shape

KEPT = ("logs", "evidence")
"""Folders that stay in the folder of a shape."""
QUICK_S = 0.1
"""Time to write the progress up to which it is written after every shape."""
WRITE_INTERVAL_RATIO = 10
"""Minimum ratio of the interval between writes to the duration of a longer write: the progress
contains all trials so far, possibly many thousands."""


def experiment_of(folder: Path) -> tuple[Path, str]:
    """Return the folder of the experiment for the results of a stack, and the number of the shape
    if other stacks run other shapes; empty otherwise."""
    if folder.parent.name == SHAPES:
        return folder.parent.parent, folder.name
    return folder, ""


class ShapeTrials(ExperimentFolder):
    def __init__(
        self, config: Config, shapes: Sequence[Shape], folder: Path, *, bucket_folder: str = ""
    ) -> None:
        """`bucket_folder` is the folder for uploads; its default comes from `folder`."""
        super().__init__(config, folder, EndedTrials(), bucket_folder=bucket_folder)
        self._shapes = shapes
        self._moved: list[Path] = []
        """Folders of shapes whose trials the progress does not list yet. A later runner reads them
        if this one is killed."""
        self._next_write_mono_s = 0.0
        self.unnecessary_trials: frozenset[int] = frozenset()
        """Trials that other trials have made unnecessary."""

    def folder_of(self, shape: int) -> Path:
        """Return the folder of a shape by its number, created if needed. Raises OSError."""
        folder = self.folder / SHAPES / str(shape)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def is_complete(self) -> bool:
        return all(self.has_all(number) for number in range(1, len(self._shapes) + 1))

    def has_all(self, shape: int) -> bool:
        known = self.unnecessary_trials.union(self._rows)
        return all(trial.number in known for trial in self._shapes[shape - 1].trials)

    @property
    def rows(self) -> list[TrialRow]:
        return self._ended.rows

    @property
    def _rows(self) -> dict[int, TrialRow]:
        return self._ended.by_number

    @property
    def finished(self) -> frozenset[int]:
        """Numbers of the finished trials with results."""
        return frozenset(
            number
            for number, row in self._rows.items()
            if row.outcome.state == RunState.DONE and row.measured is not None
        )

    def add_finished(self) -> None:
        """Add the trials of a resumed experiment, unless they are known; failed ones are run again.
        Raises ConfigError."""
        if not self._rows:
            self.add(self.folder)
            self.keep_only(self.finished)

    def keep_only(self, numbers: frozenset[int]) -> None:
        self._ended.by_number = {number: self._rows[number] for number in sorted(numbers)}

    def of_whole_shapes(self, finished: frozenset[int]) -> frozenset[int]:
        """Return the trials except those whose shape has other trials too; these shapes are run
        again as a whole."""
        found = ([trial.number for trial in shape.trials] for shape in self._shapes)
        return frozenset(n for numbers in found if finished.issuperset(numbers) for n in numbers)

    def add(self, folder: Path) -> None:
        """Add the trials that the services of a shape have written into a folder, if any has ended.
        Raises ConfigError."""
        if is_experiment(folder):
            self._read(folder)

    def _read(self, listed: Path) -> None:
        """Add the trials in a folder's experiment.json that are in the experiment's folder."""
        for entry in read_experiment_file(listed).trials:
            (found,) = read_outcomes(self.folder, (entry,))
            self._rows[entry.number] = row_of(found)

    def collect(self, shape: int, left: Path) -> None:
        """Add the trials in the folder of a shape, from which they are moved, or in the folder of
        the experiment. Add none if none has ended or files are missing. Raises ConfigError,
        EnvironmentProblem."""
        if not is_experiment(left) or folders.is_collecting(left):
            return
        if left == self.folder:
            self._read(left)
        else:
            self.move(shape)

    def add_outcome(self, outcome: TrialOutcome) -> None:
        """Add a finished trial, and update its scenario and the progress. Raises
        EnvironmentProblem."""
        self.write_scenario(self._ended.add(outcome))
        self.write_progress()

    def move(self, shape: int) -> None:
        """Move the trials from the folder of a shape to the experiment's folder, and add them.
        Raises EnvironmentProblem."""
        folder = self.folder_of(shape)
        try:
            (self.folder / TRIALS).mkdir(exist_ok=True)
            for trial in (folder / TRIALS).glob("*"):
                place = self.folder / TRIALS / trial.name
                if place.exists():  # left by an earlier attempt that failed after this move
                    _remove(place)
                trial.rename(place)
            self._read(folder)
        except OSError as error:
            raise EnvironmentProblem(f"{folder}: {error.strerror or error}") from error
        self._moved.append(folder)
        if time.monotonic() >= self._next_write_mono_s:
            self.write_progress()

    def move_collected(self) -> None:
        """Move the collected trials of shapes if a killed runner did not. Raises ConfigError,
        EnvironmentProblem."""
        for folder in sorted((self.folder / SHAPES).glob("*")):
            if is_experiment(folder) and not folders.is_collecting(folder):
                self.move(int(folder.name))
        self.keep_only(self.finished)

    def run_values(self, run: RunValues, trial: str = "") -> RunValues:
        """Return the run values of one shape, or of the trial with this folder: all shapes share
        one folder in the bucket."""
        into = self._upload_folder
        return replace(run, upload_into=f"{into}/{TRIALS}/{trial}" if into and trial else into)

    def fail_unfinished(self, shape: int, reason: str, *, with_stopped: bool = False) -> None:
        """Record the unfinished trials of a shape as failed, optionally also the stopped ones."""
        for trial in self._shapes[shape - 1].trials:
            found = self._rows.get(trial.number)
            if found is None or (with_stopped and found.outcome.state == RunState.CANCELLED):
                failed = TrialOutcome(trial, RunState.FAILED.value, reason, None)
                self._rows[trial.number] = row_of(failed)

    def rows_of(self, shape: int) -> list[TrialRow]:
        trials = self._shapes[shape - 1].trials
        return [self._rows[t.number] for t in trials if t.number in self._rows]

    def write_progress(self, search: SearchReport | None = None) -> None:
        """Write experiment.json and the links for the trials so far, for a later runner if this one
        is killed. Raises EnvironmentProblem."""
        began = time.monotonic()
        super().write_progress(search)
        while self._moved:
            _clear(self._moved[-1])
            self._moved.pop()
        ended = time.monotonic()
        if ended - began > QUICK_S:
            self._next_write_mono_s = ended + WRITE_INTERVAL_RATIO * (ended - began)

    def write(self, run_id: str, search: SearchReport | None = None) -> ExperimentResult | None:
        """Write the files of the experiment, and return its results; None if no trial has started.
        Raises EnvironmentProblem."""
        if self._moved:
            self.write_progress()
        self.remove_empty()
        return super().write(run_id, search) if self._rows else None

    def remove_empty(self) -> None:
        """Remove the empty folders of logs and shapes."""
        for each in (self.folder / "logs", *self.folder.glob(f"{SHAPES}/*")):
            folders.remove_if_empty(each)
        with suppress(OSError):
            (self.folder / SHAPES).rmdir()


def _clear(folder: Path) -> None:
    """Remove the unneeded files in the folder of a shape. Raises EnvironmentProblem."""
    try:
        for each in folder.iterdir():
            if each.name not in KEPT:
                _remove(each)
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: {error.strerror or error}") from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


STOPPED_SUFFIX = f"-stopped{TEMPORARY_SUFFIX}"
"""Suffix of the folder with the files of a stopped attempt."""


class Attempts:
    """The trials of attempts to run shapes. The trials of an attempt that is repeated are kept
    aside: they count only if no other attempt has any."""

    def __init__(self, trials: ShapeTrials) -> None:
        self._trials = trials

    def set_aside(self, shape: int, folder: Path) -> None:
        """Keep the files of an attempt that is repeated. Raises EnvironmentProblem."""
        if is_experiment(folder):
            _replace(self._kept(shape), folder)

    def collect(self, shape: int, folder: Path | None = None) -> None:
        """Move the trials of an attempt to those of the experiment: the trials in its folder, else
        the ones kept aside. Raises ConfigError, EnvironmentProblem."""
        kept = self._kept(shape)
        found = folder if folder is not None and is_experiment(folder) else kept
        if is_experiment(found):
            # An earlier attempt to move it may have failed, for example on a full disk.
            _replace(self._trials.folder_of(shape), found)
            self._trials.move(shape)
        shutil.rmtree(kept, ignore_errors=True)

    def collect_begun(self) -> None:
        """Add the trials that a collector was adding when it ended. Raises ConfigError,
        EnvironmentProblem."""
        for folder in sorted(self._trials.folder.glob(f"{SHAPES}/*")):
            if folder.name.isdecimal() and is_experiment(folder):
                self._trials.move(int(folder.name))

    @property
    def set_aside_shapes(self) -> list[int]:
        folders = sorted(self._trials.folder.glob(f"{SHAPES}/*{STOPPED_SUFFIX}"))
        return [int(each.name.removesuffix(STOPPED_SUFFIX)) for each in folders]

    def _kept(self, shape: int) -> Path:
        return self._trials.folder / SHAPES / f"{shape}{STOPPED_SUFFIX}"


def _replace(place: Path, folder: Path) -> None:
    """Move a folder, and replace an existing one. Raises EnvironmentProblem."""
    try:
        if place.exists():
            shutil.rmtree(place)
        folder.rename(place)
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: {error.strerror or error}") from error
