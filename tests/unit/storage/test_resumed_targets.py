"""Which trials of several targets are repeated."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.adapters.storage.experiment_folder import ExperimentFolder
from aiperf_svc.adapters.storage.resuming import check, image_notes, keep_finished
from aiperf_svc.adapters.storage.shape_trials import ShapeTrials
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import EndedTrials
from aiperf_svc.core.experiments.trials import TRIALS, Trial
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.domain.errors import ConfigError
from tests.support import fake_run


def config(**changes: object) -> BenchmarkConfig:
    content = fake_run.config().model_dump(mode="json") | changes
    experiment = {"product": {"load.concurrency": [1, 2, 3]}}
    return BenchmarkConfig.model_validate(content | {"experiment": experiment})


def write_trials(folder: Path, count: int) -> Path:
    """Write the folder of a target with this many ended trials and an unfinished one."""
    ended = EndedTrials()
    for number in range(1, count + 1):
        trial = Trial(number, {"load.concurrency": number})
        own = folder / TRIALS / trial.folder
        own.mkdir(parents=True)
        records = fake_run.closed_loop(requests=20, concurrency=number)
        columns = fake_run.columns_of(records)
        context = replace(fake_run.context(records), run_id=f"{folder.name}-{number}")
        summary = summarise(columns, None, context)
        write_all(own, summary, columns)
        results = result_of(summary)
        ended.add(TrialOutcome(trial, "done", "", results))
    (folder / TRIALS / f"{count + 1:03}-begun").mkdir()
    ExperimentFolder(config(), folder, ended).write_progress()
    return folder


def test_trial_unfinished_on_one_target_repeats_on_all(tmp_path: Path) -> None:
    eu, us = write_trials(tmp_path / "eu", 2), write_trials(tmp_path / "us", 1)
    opened = [ShapeTrials(config(), (), folder) for folder in (eu, us)]
    assert keep_finished(opened, config()) == {1}
    for folder in (eu, us):
        listed = json.loads((folder / "experiment.json").read_bytes())["trials"]
        assert [each["number"] for each in listed] == [1]
        names = sorted(path.name for path in (folder / TRIALS).iterdir())
        assert names[0] == listed[0]["folder"]
        assert all(name.endswith("-unfinished1") for name in names[1:])


def test_finished_trials_of_another_image_are_named(tmp_path: Path) -> None:
    folder = write_trials(tmp_path / "eu", 2)
    for place in (folder / TRIALS).iterdir():
        (place / "config.yaml").write_text("deployment: {image: {name: services:1}}\n")
    (note,) = image_notes(folder, {1, 2}, "services:2")
    assert "trials 1, 2 in " in note
    assert "services' image services:1, and the others run with services:2" in note
    assert image_notes(folder, {1, 2}, "services:1") == []
    assert image_notes(folder, {1, 2}, None) == []


def test_a_folder_of_other_targets_is_refused(tmp_path: Path) -> None:
    eu = write_trials(tmp_path / "eu", 1)
    with pytest.raises(ConfigError, match=r"us/experiment.json: No such file"):
        check({eu: config(), tmp_path / "us": config()})
    other = config(random_seed=9)
    with pytest.raises(ConfigError, match="is of another config: random_seed differs"):
        check({eu: other})
    assert sorted(path.name for path in (eu / TRIALS).iterdir())[-1] == "002-begun"


def test_addresses_found_in_the_cluster_may_differ(tmp_path: Path) -> None:
    folder = write_trials(tmp_path / "eu", 1)
    found = config(deployment={"api_server_cidrs": ["10.0.0.1/32"]})
    check({folder: found})
    opened = [ShapeTrials(found, (), folder)]
    assert keep_finished(opened, found, in_one_stack=True) == {1}
