"""What the attempts of shapes have sent: which of it counts, and where it is put."""

import shutil
from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.shape_trials import SHAPES, ShapeTrials

KEPT = f"-stopped{TEMPORARY_SUFFIX}"
"""Suffix of the folder of what a stopped attempt has sent."""


class Attempts:
    """The trials that attempts of shapes have left. Those of an attempt that is tried again are
    kept aside: they count if no other attempt leaves any."""

    def __init__(self, trials: ShapeTrials) -> None:
        self._trials = trials

    def keep(self, shape: int, folder: Path) -> None:
        """Keep what an attempt has sent that is tried again. Raises EnvironmentProblem."""
        if is_experiment(folder):
            _replace(self._kept(shape), folder)

    def take(self, shape: int, folder: Path | None = None) -> None:
        """Put the trials of an attempt among those of the experiment: those in its folder, else
        those that were kept; nothing if there are none. Raises ConfigError, EnvironmentProblem."""
        kept = self._kept(shape)
        found = folder if folder is not None and is_experiment(folder) else kept
        if is_experiment(found):
            # An earlier try to take it may have failed, on a full disk.
            _replace(self._trials.folder_of(shape), found)
            self._trials.move(shape)
        shutil.rmtree(kept, ignore_errors=True)

    def take_begun(self) -> None:
        """Take trials that a collector was taking when it ended. Raises ConfigError,
        EnvironmentProblem."""
        for folder in sorted(self._trials.folder.glob(f"{SHAPES}/*")):
            if folder.name.isdecimal() and is_experiment(folder):
                self._trials.move(int(folder.name))

    @property
    def kept(self) -> list[int]:
        """Shapes of which something is kept."""
        folders = sorted(self._trials.folder.glob(f"{SHAPES}/*{KEPT}"))
        return [int(each.name.removesuffix(KEPT)) for each in folders]

    def _kept(self, shape: int) -> Path:
        return self._trials.folder / SHAPES / f"{shape}{KEPT}"


def _replace(place: Path, folder: Path) -> None:
    """Move a folder to a place, whatever is there. Raises EnvironmentProblem."""
    try:
        if place.exists():
            shutil.rmtree(place)
        folder.rename(place)
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: {error.strerror or error}") from error
