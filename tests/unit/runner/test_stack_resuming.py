"""How an experiment on a cluster goes on after its runner was killed."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.exports.manifest import Manifest
from aiperf_svc.adapters.exports.result_files import encode
from aiperf_svc.adapters.storage import folders, resuming, shape_trials
from aiperf_svc.adapters.storage.uploads import Uploaded
from aiperf_svc.config.artifacts import S3
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.stack import preflight
from tests.support.fake_stack_run import RECORD, RESULTS, FakeStackRun, in_shapes, trials_of

ALL = [(number, "done", "") for number in range(1, 7)]


@pytest.fixture(autouse=True)
def progress_after_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have experiment.json written after each shape. A slow write postpones the next one, so that
    on a busy machine it would depend on the machine what a killed runner leaves."""
    monkeypatch.setattr(shape_trials, "QUICK_S", math.inf)


async def resumed(played: FakeStackRun, folder: Path) -> RunOutcome:
    """How a second runner ends that goes on in a folder."""
    found = resuming.read_resumed(folder, played.request.config)
    played.request = replace(played.request, resumed=found)
    played.ups, played.did = [], []
    return await played.launched()


def in_one_shape(played: FakeStackRun, **experiment: Any) -> None:
    experiment = experiment or {"product": {"load.concurrency": [1, 2]}, "repetitions": 3}
    played.benchmark = {**played.benchmark, "experiment": experiment}
    played.request = replace(played.request, config=parse_config(played.benchmark, ""))


async def killed(played: FakeStackRun, *, in_run: int) -> Path:
    """What a runner leaves that is killed while it follows a run."""
    played.killed_in = in_run
    await played.launched()
    return played.killed


async def test_the_run_that_was_left_is_followed_and_no_shape_that_was_collected_runs_again(
    played: FakeStackRun,
) -> None:
    in_shapes(played)
    folder = await killed(played, in_run=2)
    assert played.home.load("s") is None
    played.running = 2
    outcome = await resumed(played, folder)
    assert (played.ups, played.did) == ([3], ["destroy", "check"])
    assert trials_of(outcome) == ALL
    assert (outcome.artifacts, outcome.exit_code) == (folder, ExitCode.OK)
    assert len(list((folder / "trials").iterdir())) == 6


async def test_trials_that_were_not_collected_run_again_where_their_stack_is_gone(
    played: FakeStackRun,
) -> None:
    in_shapes(played)
    folder = await killed(played, in_run=2)
    outcome = await resumed(played, folder)
    assert played.ups == [2, 3]
    assert trials_of(outcome) == ALL


async def test_the_run_that_was_left_comes_first_although_a_trial_before_it_failed(
    played: FakeStackRun,
) -> None:
    in_shapes(played)
    played.up_errors[1] = EnvironmentProblem("no room")
    folder = await killed(played, in_run=1)
    played.up_errors.clear()
    played.running = 2
    outcome = await resumed(played, folder)
    assert played.ups == [1, 3]
    assert trials_of(outcome) == ALL


async def test_one_shape_is_collected_whole_from_the_run_that_was_left(
    played: FakeStackRun,
) -> None:
    in_one_shape(played)
    folder = await killed(played, in_run=1)
    assert msgspec.json.decode((folder / "experiment.json").read_bytes())["trials"] == []
    played.running = 1
    outcome = await resumed(played, folder)
    assert (played.ups, played.did) == ([], ["destroy", "check"])
    assert played.request.resumed is not None
    assert played.request.resumed.finished == frozenset()
    assert len(list((folder / "trials").iterdir())) == 6
    assert outcome.artifacts == folder


async def test_only_the_trials_that_are_left_run_if_some_were_collected(
    played: FakeStackRun,
) -> None:
    in_one_shape(played)
    before = played.request.plan.identity.run_id
    outcome = await played.launched()
    folder = outcome.artifacts
    assert folder is not None
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    content["trials"] = [each for each in content["trials"] if each["number"] != 4]
    content["config"]["deployment"]["registration_timeout"] = 1
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    again = await resumed(played, folder)
    (shape,) = played.request.shapes
    assert [trial.number for trial in shape.trials] == [4]
    assert played.request.plan.identity.run_id != before
    assert played.ups == [1]
    assert trials_of(again) == ALL
    names = sorted(path.name for path in (folder / "trials").iterdir())
    assert len(names) == 7
    assert names[4].endswith("-unfinished1")


async def test_what_the_runner_found_in_the_cluster_is_no_other_config(
    played: FakeStackRun,
) -> None:
    in_one_shape(played)
    folder = await killed(played, in_run=1)
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    pods = {"namespace": "serving", "labels": {"app": "vllm"}, "port": 8000}
    content["config"]["deployment"]["target"]["pods"] = pods
    content["config"]["telemetry"]["exporters"] = [{"namespace": "gpus", "port": 9400}]
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    assert resuming.read_resumed(folder, played.request.config).finished == frozenset()


async def test_a_download_that_was_cut_off_goes_on_from_the_stack_or_counts_for_nothing(
    played: FakeStackRun,
) -> None:
    in_one_shape(played)
    outcome = await played.launched()
    folder = outcome.artifacts
    assert folder is not None
    with pytest.raises(EnvironmentProblem), folders.collecting(folder, "id"):
        raise EnvironmentProblem("killed")
    assert resuming.read_resumed(folder, played.request.config).finished == frozenset()
    await resumed(played, folder)
    assert played.ups == [1]
    assert not folders.is_collecting(folder)
    assert len(list((folder / "trials").iterdir())) == 12


async def test_trials_that_were_fetched_and_not_moved_are_moved(played: FakeStackRun) -> None:
    in_shapes(played)
    folder = await killed(played, in_run=3)
    second = folder / "shapes" / "2"
    second.mkdir(exist_ok=True)
    shape = played.request.shapes[1]
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    listed = [t for t in content["trials"] if t["number"] in {t.number for t in shape.trials}]
    assert len(listed) == 2
    (second / "experiment.json").write_bytes(msgspec.json.encode(content | {"trials": listed}))
    # One of the two was moved before the runner was killed.
    (second / "trials").mkdir()
    (folder / "trials" / listed[1]["folder"]).rename(second / "trials" / listed[1]["folder"])
    content["trials"] = [each for each in content["trials"] if each not in listed]
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    outcome = await resumed(played, folder)
    assert played.ups == [3]
    assert trials_of(outcome) == ALL


async def test_a_stack_whose_trials_were_all_collected_is_only_removed(
    played: FakeStackRun,
) -> None:
    in_shapes(played)
    outcome = await played.launched()
    assert outcome.artifacts is not None
    played.home.save(RECORD)
    again = await resumed(played, outcome.artifacts)
    assert (played.ups, played.did) == ([], ["destroy", "check"])
    assert trials_of(again) == ALL
    assert (again.exit_code, played.home.load("s")) == (ExitCode.OK, None)
    once_more = await resumed(played, outcome.artifacts)
    assert (played.ups, played.did, once_more.exit_code) == ([], [], ExitCode.OK)
    assert trials_of(once_more) == ALL


async def test_an_experiment_that_began_nothing_leaves_no_folder(played: FakeStackRun) -> None:
    in_one_shape(played)
    played.stops_up_of = 1
    outcome = await played.launched()
    assert (outcome.exit_code, outcome.artifacts) == (ExitCode.INTERRUPTED, None)
    assert played.made == []


async def test_an_interrupt_before_anything_is_made_keeps_a_folder_that_is_resumed(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(played)
    folder = await killed(played, in_run=1)

    async def interrupted(*_: Any, **__: Any) -> None:
        played.interrupts.add()

    monkeypatch.setattr(preflight, "check", interrupted)
    outcome = await resumed(played, folder)
    assert (played.ups, outcome.exit_code) == ([], ExitCode.INTERRUPTED)
    assert (folder / "experiment.json").exists()


async def test_the_trials_of_all_shapes_go_to_one_place_of_the_bucket(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = {"url": "s3://bucket/runs"}
    artifacts = {**played.benchmark["artifacts"], "s3": s3}
    played.benchmark = {**played.benchmark, "artifacts": artifacts}
    in_shapes(played, number=2)
    secrets = {"s3AccessKeyId": "from the environment"}
    played.request = replace(played.request, secrets=secrets)
    sent: list[tuple[str, dict[str, str], set[str]]] = []

    def upload(_: Path, manifest: Manifest, __: S3, *, into: str, environ: Any) -> Uploaded:
        sent.append((into, environ, {entry.name for entry in manifest.files}))
        return Uploaded(f"s3://bucket/runs/{into}", (), ())

    monkeypatch.setattr(shape_trials, "upload", upload)
    outcome = await played.launched()
    ((into, environ, names),) = sent
    assert outcome.artifacts is not None
    assert into.startswith(outcome.artifacts.name)
    assert outcome.uploaded_to == f"s3://bucket/runs/{into}"
    assert played.uploads == [into] * 2
    assert environ == {
        "AWS_ACCESS_KEY_ID": "from the environment",
        "AWS_SECRET_ACCESS_KEY": "the stack's s3SecretAccessKey",
    }
    assert {"experiment.json", "experiment.parquet", "report.html"} < names
    assert len([name for name in names if name.startswith("trials/")]) == 4


async def test_a_search_goes_on_only_while_its_pods_know_what_it_found(
    played: FakeStackRun,
) -> None:
    search = {"parameter": "load.request_rate", "from": 1, "to": 9, "holds": "goodput >= 95%"}
    played.benchmark = {
        **played.benchmark,
        "load": {"duration": "5s"},
        "slo": {"goodput": {"time_to_first_token": "1s"}},
    }
    in_one_shape(played, search=search)
    config = played.request.config
    folder = played.folder / "search"
    (folder / "trials" / "001").mkdir(parents=True)
    resuming.begin(folder, config)
    assert resuming.read_resumed(folder, config).finished == frozenset()
    (folder / "trials" / "001").mkdir()
    (folder / "trials" / "001" / "profile_export_aiperf.json").write_bytes(encode(RESULTS))
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    trial = {"number": 1, "repetition": 1, "parameters": {}, "folder": "001"}
    content["trials"] = [trial | {"state": "done", "reason": ""}]
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(ConfigError, match="start a new search"):
        resuming.read_resumed(folder, config)
