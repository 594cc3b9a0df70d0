"""How an experiment on a cluster resumes after its runner was killed."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.cluster.preflight.images import PulledImages
from aiperf_svc.adapters.exports.manifest import Manifest, read_manifest
from aiperf_svc.adapters.exports.result_files import encode
from aiperf_svc.adapters.storage import experiment_folder, folders, resuming, shape_trials
from aiperf_svc.adapters.storage.provenance_file import write_provenance
from aiperf_svc.adapters.storage.uploads import Uploaded
from aiperf_svc.config.artifacts import S3
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.pods import HOSTNAME
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.stack import bring_up, discovery, launch
from aiperf_svc.runner.stack.members import expand_requests
from aiperf_svc.runner.stack.request import WORKLOAD_IMAGE, StackRequest
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.fake_stack_run import (
    RECORD,
    RESULTS,
    FakeStackRun,
    in_shapes,
    returning,
    trials_of,
)

ALL = [(number, "done", "") for number in range(1, 7)]


@pytest.fixture(autouse=True)
def progress_after_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write experiment.json after each shape. A slow write postpones the next one, so otherwise the
    files of a killed runner would depend on the machine."""
    monkeypatch.setattr(shape_trials, "QUICK_S", math.inf)


async def resumed(stack_run: FakeStackRun, folder: Path) -> RunOutcome:
    """Run a second runner that resumes in a folder, and return its outcome."""
    stack_run.ups, stack_run.did, stack_run.plans = [], [], []
    return await stack_run.launch(resume=folder)


def in_one_shape(stack_run: FakeStackRun, **experiment: Any) -> None:
    experiment = experiment or {"product": {"load.concurrency": [1, 2]}, "repetitions": 3}
    stack_run.benchmark = {**stack_run.benchmark, "experiment": experiment}
    stack_run.request = replace(stack_run.request, config=parse_config(stack_run.benchmark, ""))


async def killed(stack_run: FakeStackRun, *, in_run: int) -> Path:
    """Return the folder that a runner leaves when it is killed while it follows a run."""
    stack_run.killed_in = in_run
    await stack_run.launch()
    return stack_run.killed


async def test_running_shape_is_followed_collected_ones_are_skipped(
    stack_run: FakeStackRun,
) -> None:
    in_shapes(stack_run)
    folder = await killed(stack_run, in_run=2)
    assert stack_run.home.load("s") is None
    stack_run.running = 2
    outcome = await resumed(stack_run, folder)
    assert (stack_run.ups, stack_run.did) == ([3], ["destroy", "check"])
    assert trials_of(outcome) == ALL
    assert (outcome.artifacts, outcome.exit_code) == (folder, ExitCode.OK)
    assert len(list((folder / "trials").iterdir())) == 6


async def test_uncollected_trials_of_a_gone_stack_rerun(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    folder = await killed(stack_run, in_run=2)
    outcome = await resumed(stack_run, folder)
    assert stack_run.ups == [2, 3]
    assert trials_of(outcome) == ALL


async def test_running_shape_comes_before_failed_ones(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    stack_run.up_errors[1] = EnvironmentProblem("no room")
    folder = await killed(stack_run, in_run=1)
    stack_run.up_errors.clear()
    stack_run.running = 2
    outcome = await resumed(stack_run, folder)
    assert stack_run.ups == [1, 3]
    assert trials_of(outcome) == ALL


async def test_visits_after_a_running_one_keep_its_node(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = PulledImages("node-1", {})
    monkeypatch.setattr(discovery, "pull_images", returning(pulled))
    over = "deployment.target.image"
    target = {"kind": "custom", "image": "a:1", "command": ["serve"]}
    stack_run.benchmark |= {
        "endpoint": {"url": "http://target", "model": "m"},
        "deployment": {"target": target, "ttl": "1d"},
    }
    in_one_shape(stack_run, product={over: ["a:1", "b:1"]}, blocks={"over": over, "count": 1})
    folder = await killed(stack_run, in_run=1)
    monkeypatch.delattr(discovery, "pull_images")  # The stack is up: no extra pod.
    stack_run.running = 1
    write_provenance(folder, Provenance(client={}, target={"node": pulled.node}))
    await resumed(stack_run, folder)
    nodes = [each.target.placement.require_nodes for each in stack_run.plans if each.target]
    assert nodes == [{HOSTNAME: (pulled.node,)}] * 3


async def test_events_left_are_undone_before_the_run_continues(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone_before_runs = list[int]()

    async def undo_recorded(*_: object) -> None:
        undone_before_runs.append(stack_run.followed + 1)

    monkeypatch.setattr(launch, "find_roots", returning(()))
    monkeypatch.setattr(launch, "undo_recorded", undo_recorded)
    stack_run.benchmark |= {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"request_rate": 10, "duration": "1m"},
        "events": [{"at": "20s", "do": "scale", "replicas": 3}],
        "deployment": {"target": {"kind": "mock"}},
    }
    in_one_shape(stack_run, repetitions=2)
    folder = await killed(stack_run, in_run=1)
    stack_run.running = 1
    undone_before_runs.clear()
    await resumed(stack_run, folder)
    assert undone_before_runs[0] == stack_run.followed == 2


async def test_single_shape_is_collected_from_running_stack(stack_run: FakeStackRun) -> None:
    in_one_shape(stack_run)
    folder = await killed(stack_run, in_run=1)
    assert msgspec.json.decode((folder / "experiment.json").read_bytes())["trials"] == []
    stack_run.running = 1
    outcome = await resumed(stack_run, folder)
    assert (stack_run.ups, stack_run.did) == ([], ["destroy", "check"])
    assert len(list((folder / "trials").iterdir())) == 6
    assert outcome.artifacts == folder


async def test_only_remaining_trials_run_after_resume(stack_run: FakeStackRun) -> None:
    in_one_shape(stack_run)
    before = stack_run.request.plan.identity.run_id
    folder = await stack_run.finish()
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    content["trials"] = [each for each in content["trials"] if each["number"] != 4]
    content["config"]["deployment"]["registration_timeout"] = 1
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    again = await resumed(stack_run, folder)
    assert stack_run.part_trials == (4,)
    (plan,) = stack_run.plans
    assert plan.identity.run_id != before
    assert read_manifest(folder).run_id == again.run_id == plan.identity.run_id
    assert trials_of(again) == ALL
    names = sorted(path.name for path in (folder / "trials").iterdir())
    assert len(names) == 7
    assert names[4].endswith("-unfinished1")


async def test_parallel_single_shape_runs_the_remaining_trials(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, number=1, parallel=2)
    stack_run.fetched = 1
    folder = await stack_run.finish()
    stack_run.fetched = None
    again = await resumed(stack_run, folder)
    assert stack_run.part_trials == (2,)
    assert trials_of(again) == [(1, "done", ""), (2, "done", "")]
    assert set(again.more) == {"stack", "namespace", "kept", "left", "not_checked", "took_s"}


@pytest.mark.parametrize("number", [1, 2])
async def test_only_copy_is_fetched_by_a_resumed_experiment(
    stack_run: FakeStackRun, number: int
) -> None:
    in_shapes(stack_run, number=number)
    stack_run.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await stack_run.launch()
    assert (outcome.exit_code, stack_run.did) == (ExitCode.ERROR, [])
    folder, stack_run.fetch_error, stack_run.running = outcome.artifacts, None, 1
    assert folder is not None
    again = await resumed(stack_run, folder)
    assert stack_run.ups == list(range(2, number + 1))
    assert again.artifacts == folder
    assert len(list((folder / "trials").iterdir())) == 2 * number


async def test_discovered_keys_do_not_change_the_config(stack_run: FakeStackRun) -> None:
    in_one_shape(stack_run)
    folder = await killed(stack_run, in_run=1)
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    pods = {"namespace": "serving", "labels": {"app": "vllm"}, "port": 8000}
    content["config"]["deployment"]["target"]["pods"] = pods
    content["config"]["telemetry"]["exporters"] = [{"namespace": "gpus", "port": 9400}]
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    resuming.check({folder: stack_run.request.config})


def test_image_variable_is_part_of_the_config(tmp_path: Path) -> None:
    tool = {
        "kind": "command",
        "image": "tool:1",
        "command": ["true"],
        "duration": "10s",
        "metrics": {"time": {"unit": "s", "pattern": "([0-9]+)"}},
    }
    config = parse_benchmark({"workload": tool, "experiment": {"repetitions": 2}}, "")
    request = StackRequest(stack="s", config=config, environ={WORKLOAD_IMAGE: "tool:2"})
    resuming.begin(tmp_path, request.plan.config)  # as the pods write it
    resuming.check({tmp_path: expand_requests({"": request}).first.config})
    for environ in ({}, {WORKLOAD_IMAGE: "tool:3"}):
        other = replace(request, environ=environ)
        with pytest.raises(ConfigError, match=r"workload\.image differs"):
            resuming.check({tmp_path: expand_requests({"": other}).first.config})


async def test_interrupted_download_resumes_or_is_discarded(stack_run: FakeStackRun) -> None:
    in_one_shape(stack_run)
    folder = await stack_run.finish()
    with pytest.raises(EnvironmentProblem), folders.collecting(folder, "id"):
        raise EnvironmentProblem("killed")
    await resumed(stack_run, folder)
    assert stack_run.ups == [1]
    assert not folders.is_collecting(folder)
    assert len(list((folder / "trials").iterdir())) == 12


async def test_fetched_but_unmoved_trials_are_moved(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    folder = await killed(stack_run, in_run=3)
    second = folder / "shapes" / "2"
    second.mkdir(exist_ok=True)
    shape = stack_run.request.shapes[1]
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    listed = [t for t in content["trials"] if t["number"] in {t.number for t in shape.trials}]
    assert len(listed) == 2
    (second / "experiment.json").write_bytes(msgspec.json.encode(content | {"trials": listed}))
    # One of the two was moved before the runner was killed.
    (second / "trials").mkdir()
    (folder / "trials" / listed[1]["folder"]).rename(second / "trials" / listed[1]["folder"])
    content["trials"] = [each for each in content["trials"] if each not in listed]
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    outcome = await resumed(stack_run, folder)
    assert stack_run.ups == [3]
    assert trials_of(outcome) == ALL


async def test_fully_collected_stack_is_only_removed(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    folder = await stack_run.finish()
    stack_run.home.save(RECORD)
    again = await resumed(stack_run, folder)
    assert (stack_run.ups, stack_run.did) == ([], ["destroy", "check"])
    assert trials_of(again) == ALL
    assert (again.exit_code, stack_run.home.load("s")) == (ExitCode.OK, None)
    once_more = await resumed(stack_run, folder)
    assert (stack_run.ups, stack_run.did, once_more.exit_code) == ([], [], ExitCode.OK)
    assert trials_of(once_more) == ALL


async def test_an_experiment_that_began_nothing_leaves_no_folder(stack_run: FakeStackRun) -> None:
    in_one_shape(stack_run)
    stack_run.stops_up_of = 1
    outcome = await stack_run.launch()
    assert (outcome.exit_code, outcome.artifacts) == (ExitCode.INTERRUPTED, None)
    assert stack_run.made == []


async def test_early_interrupt_keeps_a_resumed_folder(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(stack_run)
    folder = await killed(stack_run, in_run=1)

    async def interrupted(*_: Any, **__: Any) -> tuple[()]:
        stack_run.interrupts.add()
        return ()

    monkeypatch.setattr(bring_up, "check", interrupted)
    outcome = await resumed(stack_run, folder)
    assert (stack_run.ups, outcome.exit_code) == ([], ExitCode.INTERRUPTED)
    assert (folder / "experiment.json").exists()


async def test_all_shapes_upload_to_one_bucket_folder(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = {"url": "s3://bucket/runs"}
    artifacts = {**stack_run.benchmark["artifacts"], "s3": s3}
    stack_run.benchmark = {**stack_run.benchmark, "artifacts": artifacts}
    in_shapes(stack_run, number=2)
    stack_run.request = replace(
        stack_run.request,
        secrets={"s3AccessKeyId": "from the environment"},
        settings={"config": {"aiperf:s3SecretAccessKey": {"secure": "v1:x"}}},
    )
    sent: list[tuple[str, dict[str, str], set[str]]] = []

    def upload(_: Path, manifest: Manifest, __: S3, *, into: str, environ: Any) -> Uploaded:
        sent.append((into, environ, {entry.name for entry in manifest.files}))
        return Uploaded(f"s3://bucket/runs/{into}", (), ())

    monkeypatch.setattr(experiment_folder, "upload", upload)
    outcome = await stack_run.launch()
    ((into, environ, names),) = sent
    assert outcome.artifacts is not None
    assert into.startswith(outcome.artifacts.name)
    assert outcome.uploaded_to == f"s3://bucket/runs/{into}"
    pods = [plan.services[0].env["AIPERF_UPLOAD_INTO"] for plan in stack_run.plans]
    assert pods == [into] * 2
    assert environ == {
        "AWS_ACCESS_KEY_ID": "from the environment",
        "AWS_SECRET_ACCESS_KEY": "the stack's s3SecretAccessKey",
    }
    assert {"experiment.json", "experiment.parquet", "report.html"} < names
    assert len([name for name in names if name.startswith("trials/")]) == 4


@pytest.mark.parametrize("parallel", [1, 2])
async def test_pods_of_every_shape_know_the_command_line(
    stack_run: FakeStackRun, parallel: int
) -> None:
    command = "aiperf-svc run s --api-key ***"
    in_shapes(stack_run, number=2, parallel=parallel)
    stack_run.options = replace(
        stack_run.options, run=replace(stack_run.options.run, cli_command=command)
    )
    await stack_run.launch()
    told = [plan.services[0].env["AIPERF_CLI_COMMAND"] for plan in stack_run.plans]
    assert told == [command] * 2


async def test_search_resumes_only_while_its_pods_run(stack_run: FakeStackRun) -> None:
    search = {"parameter": "load.request_rate", "from": 1, "to": 9, "holds": "goodput >= 95%"}
    stack_run.benchmark = {
        **stack_run.benchmark,
        "load": {"duration": "5s"},
        "slo": {"goodput": {"time_to_first_token": "1s"}},
    }
    in_one_shape(stack_run, search=search)
    config = stack_run.request.config
    folder = stack_run.folder / "search"
    (folder / "trials" / "001").mkdir(parents=True)
    resuming.begin(folder, config)
    opened = [shape_trials.ShapeTrials(config, (), folder)]
    assert resuming.keep_finished(opened, config, in_one_stack=True) == frozenset()
    (folder / "trials" / "001").mkdir()
    (folder / "trials" / "001" / "profile_export_aiperf.json").write_bytes(encode(RESULTS))
    content = msgspec.json.decode((folder / "experiment.json").read_bytes())
    trial = {"number": 1, "repetition": 1, "parameters": {}, "folder": "001"}
    content["trials"] = [trial | {"state": "done", "reason": ""}]
    (folder / "experiment.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(ConfigError, match="start a new search"):
        resuming.keep_finished(opened, config, in_one_stack=True)
