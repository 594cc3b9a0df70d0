"""Which of the trials that a shape's attempts have sent count."""

from pathlib import Path

import pytest

from aiperf_svc.adapters.storage.shape_trials import Attempts, ShapeTrials
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.shapes import index_shapes
from tests.support.fake_folders import list_trials
from tests.support.small_configs import small_jobs

MEMORY = {"deployment.target.memory": ["128Mi", "144Mi"]}
CONFIG = parse_benchmark(small_jobs(product=MEMORY, repetitions=2), "")
SHAPES = index_shapes(CONFIG)


def sent(folder: Path, *, reason: str, shape: int = 1) -> Path:
    """Write a folder with the trials of a shape, all of which failed for this reason."""
    folder.mkdir(parents=True)
    list_trials(folder, ((trial, "failed") for trial in SHAPES[shape - 1].trials), reason)
    return folder


@pytest.fixture
def trials(tmp_path: Path) -> ShapeTrials:
    return ShapeTrials(CONFIG, SHAPES, tmp_path / "artifacts")


@pytest.fixture
def attempts(trials: ShapeTrials) -> Attempts:
    trials.folder_of(1)
    return Attempts(trials)


def reasons(trials: ShapeTrials, shape: int = 1) -> set[str]:
    return {row.outcome.reason for row in trials.rows_of(shape)}


def test_trials_of_a_stopped_attempt_count_without_others(
    tmp_path: Path, trials: ShapeTrials, attempts: Attempts
) -> None:
    attempts.set_aside(1, sent(tmp_path / "first", reason="of the first"))
    assert (reasons(trials), attempts.set_aside_shapes) == (set(), [1])
    (tmp_path / "empty").mkdir()
    attempts.set_aside(1, tmp_path / "empty")
    attempts.collect(1, tmp_path / "empty")
    assert (reasons(trials), attempts.set_aside_shapes) == ({"of the first"}, [])


def test_trials_of_an_attempt_replace_those_kept(
    tmp_path: Path, trials: ShapeTrials, attempts: Attempts
) -> None:
    for name in ("first", "second"):
        attempts.set_aside(1, sent(tmp_path / name, reason=f"of the {name}"))
    attempts.collect(1, sent(tmp_path / "third", reason="of the third"))
    assert (reasons(trials), attempts.set_aside_shapes) == ({"of the third"}, [])
    attempts.collect(1)
    assert reasons(trials) == {"of the third"}


def test_partly_collected_trials_are_collected_again(
    trials: ShapeTrials, attempts: Attempts
) -> None:
    sent(trials.folder / "shapes" / "2", reason="of the second shape", shape=2)
    attempts.collect_begun()
    assert (reasons(trials), reasons(trials, 2)) == (set(), {"of the second shape"})


def test_unmovable_folder_is_an_environment_error(
    tmp_path: Path, trials: ShapeTrials, attempts: Attempts
) -> None:
    folder = sent(tmp_path / "first", reason="of the first")
    (trials.folder / "shapes" / "1").rmdir()
    (trials.folder / "shapes").rmdir()
    with pytest.raises(EnvironmentProblem, match="No such file or directory"):
        attempts.set_aside(1, folder)
