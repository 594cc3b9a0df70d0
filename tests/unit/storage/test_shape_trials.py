"""Which trials of many shapes are kept."""

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiperf_svc.adapters.exports.experiment_file import read_experiment_file
from aiperf_svc.adapters.storage import folders, shape_trials
from aiperf_svc.adapters.storage.experiment_folder import ExperimentFolder
from aiperf_svc.adapters.storage.shape_trials import ShapeTrials
from aiperf_svc.adapters.storage.uploads import folder_of_experiment
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.core.experiments.trials import SHAPES, TRIALS
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.shapes import index_shapes
from tests.support.fake_folders import list_trials
from tests.support.small_configs import small_jobs

COUNT = 50
LARGE_BYTES = 200_000
"""Size of a trial's results."""


def test_uploads_of_a_target_replace_no_earlier_ones() -> None:
    experiment = Experiment.model_validate({"product": {"load.concurrency": [1, 2]}})
    nights = [Path(f"/a/bench-2026112{night}T012343Z") for night in (3, 4)]
    found = [folder_of_experiment(each / name, experiment) for each in nights for name in "ab"]
    assert len(set(found)) == 4
    digest = folder_of_experiment(nights[0], experiment).removeprefix(f"{nights[0].name}-")
    assert found[0] == f"a/{nights[0].name}-{digest}"


def test_trial_results_are_not_kept_in_memory(tmp_path: Path) -> None:
    config = parse_benchmark(small_jobs(explicit=[{}], repetitions=COUNT), "")
    shapes = index_shapes(config)
    trials = ShapeTrials(config, shapes, tmp_path)
    for trial in shapes[0].trials:
        folder = tmp_path / TRIALS / trial.folder
        folder.mkdir(parents=True)
        content = {"aiperf_svc": {"verdict": "valid"}, "rest": "x" * LARGE_BYTES}
        (folder / "profile_export_aiperf.json").write_text(json.dumps(content))
    list_trials(tmp_path, ((trial, "done") for trial in shapes[0].trials))
    trials.add(tmp_path)  # imports modules
    tracemalloc.start()
    try:
        trials.add(tmp_path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trials.finished == {each.number for each in shapes[0].trials}
    assert len(trials.finished) == COUNT
    assert kept < COUNT * LARGE_BYTES / 10


def test_incomplete_results_of_a_shape_stay_there(tmp_path: Path) -> None:
    config = parse_benchmark(small_jobs(explicit=[{}]), "")
    shapes = index_shapes(config)
    trials, (trial,) = ShapeTrials(config, shapes, tmp_path), shapes[0].trials
    own = trials.folder_of(1)
    (own / TRIALS / trial.folder).mkdir(parents=True)
    list_trials(own, [(trial, "done")])
    with pytest.raises(EnvironmentProblem), folders.collecting(own, "run"):
        raise EnvironmentProblem("the disk is full")
    trials.collect(1, own)
    assert trials.rows == []
    assert (own / TRIALS / trial.folder).is_dir()
    folders.end_collecting(own)
    trials.collect(1, own)
    assert [row.number for row in trials.rows] == [trial.number]


def test_progress_of_many_shapes_is_cheap_and_recoverable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, writes = 0.0, 0

    def write(trials: ShapeTrials, search: None) -> None:
        nonlocal now_s, writes
        now_s += 0.01 * len(trials.rows)
        writes += 1
        write_progress(trials, search)

    write_progress = ExperimentFolder.write_progress
    monkeypatch.setattr(shape_trials, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(ExperimentFolder, "write_progress", write)
    args = [["--seed", str(number)] for number in range(COUNT)]
    config = parse_benchmark(small_jobs(product={"deployment.target.args": args}), "")
    shapes = index_shapes(config)
    trials = ShapeTrials(config, shapes, tmp_path)
    for number, shape in enumerate(shapes, start=1):
        (trial,) = shape.trials
        folder = trials.folder_of(number)
        (folder / TRIALS / trial.folder).mkdir(parents=True)
        (folder / "logs").mkdir()
        list_trials(folder, [(trial, "done")])
        trials.move(number)
        now_s += 0.1
    assert 10 <= writes < COUNT / 3
    killed = read_experiment_file(tmp_path).trials
    assert len(killed) < COUNT
    # Trials that are missing in the progress are found in the folders of shapes.
    after = ShapeTrials(config, shapes, tmp_path)
    after.add(tmp_path)
    for folder in sorted((tmp_path / SHAPES).iterdir()):
        if (folder / "experiment.json").exists():
            after.move(int(folder.name))
    assert after.is_complete
    after.write("run")
    assert len(read_experiment_file(tmp_path).trials) == COUNT
    left = {path.name for path in (tmp_path / SHAPES).glob("*/*")}
    assert left <= {"logs"}
