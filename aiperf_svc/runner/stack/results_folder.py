"""The folder for the results of a stack's run, and the trials of an experiment in it."""

from pathlib import Path

from aiperf_svc.runner import folders, resuming
from aiperf_svc.runner.shape_trials import ShapeTrials
from aiperf_svc.runner.stack.request import StackRequest


def shapes_left(request: StackRequest) -> list[int]:
    """Return the positions, from 1, of the request's plans whose shapes have trials to run."""
    finished = request.resumed.finished if request.resumed is not None else ()
    return [
        place
        for place, number in enumerate(request.own_shapes, start=1)
        if any(trial.number not in finished for trial in request.shapes[number - 1].trials)
    ]


def prepare(request: StackRequest, *, is_running: bool) -> Path:
    """Make the folder, or make that of a resumed experiment ready for the trials that are left.
    `is_running`: its stack runs them already. Raises ConfigError if none can be made, and
    EnvironmentProblem."""
    if request.resumed is not None:
        folder = request.resumed.folder
        if request.resumed.finished:
            resuming.set_aside(folder, request.resumed.finished)
        elif not is_running:
            resuming.begin(folder, request.config)
        return folder
    assert request.folder is not None
    return folders.make_folder(request.folder)


def collected_trials(request: StackRequest, folder: Path) -> ShapeTrials | None:
    """Return the trials as they come into the folder; None where all of them come at once. Raises
    ConfigError."""
    resumed = request.resumed
    has_ended_before = resumed is not None and bool(resumed.finished)
    if len(request.plans) == 1 and not has_ended_before:
        return None
    trials = ShapeTrials(request.config, request.shapes, folder)
    if has_ended_before:
        trials.add_finished()
    return trials


def remove_if_empty(request: StackRequest, folder: Path) -> bool:
    """Remove a folder into which nothing came, unless it is that of a resumed experiment; whether
    it was removed."""
    if request.resumed is not None:
        return False
    if request.config.experiment is not None:
        resuming.remove_beginning(folder)
    return folders.remove_if_empty(folder)
