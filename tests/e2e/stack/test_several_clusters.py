"""One stack in several clusters: one start, one result, and a cluster that fails. The clusters are
contexts of one kubeconfig."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.config.clusters import CLUSTERS_KEY
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED, trials_of
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config

pytestmark = pytest.mark.cluster
LATE = 0.1
"""Largest share of the common time of two loads by which their starts may differ."""


def in_clusters(runner: Runner, *contexts: str) -> None:
    """Configure these clusters in the runner's file and write a kubeconfig with their contexts.
    `east` and `west` are the test's cluster, and `nowhere` does not respond."""
    content = yaml.safe_load(runner.file.read_text())
    content["config"][CLUSTERS_KEY] = [{"context": context} for context in contexts]
    runner.file.write_text(yaml.safe_dump(content))
    known = yaml.safe_load(Path(runner.environ["KUBECONFIG"]).read_text())
    own = next(e["context"] for e in known["contexts"] if e["name"] == runner.cluster.context)
    known["clusters"].append({"name": "nowhere", "cluster": {"server": "https://127.0.0.1:1"}})
    known["contexts"] += [
        {"name": "east", "context": own},
        {"name": "west", "context": own},
        {"name": "nowhere", "context": {**own, "cluster": "nowhere"}},
    ]
    file = runner.folder / "kubeconfig"
    file.write_text(yaml.safe_dump(known))
    runner.environ["KUBECONFIG"] = str(file)


def joint_of(runner: Runner) -> tuple[Path, dict[str, Any]]:
    (path,) = runner.artifacts.glob("*/joint.json")
    content: dict[str, Any] = json.loads(path.read_bytes())
    return path.parent, content


@pytest.fixture
def runner(
    make_runner: Callable[[], Runner], monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> Iterator[Runner]:
    """Make a runner whose commands name no context, because the stack file does."""
    made = make_runner()
    monkeypatch.setattr(made, "_command", lambda *arguments: (*made.program, *arguments))
    yield made
    for name in ("east", "west", "nowhere", "whole", "parts"):
        assert cluster.left_of(f"{made.name}-{name}") == []


def test_two_clusters_start_together_and_make_one_result(runner: Runner) -> None:
    in_clusters(runner, "east", "west")
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for("  up: ")
        ended = command.end()
    printed = json.loads(ended.out)
    assert ended.code in FINISHED
    assert [each["left"] for each in printed["members"]] == [[], []]
    folder, joint = joint_of(runner)
    assert joint == printed["results"]
    print(f"first requests: {joint['start_spread_ms']} ms ± {joint['start_uncertainty_ms']} ms")
    late_ms = joint["start_spread_ms"] - joint["start_uncertainty_ms"]
    assert late_ms < LATE * joint["interval_s"] * 1e3
    own = [
        json.loads((folder / name / "profile_export_aiperf.json").read_bytes())
        for name in ("east", "west")
    ]
    for tag in ("request_count", "total_isl", "total_osl"):
        assert joint["total"][tag]["avg"] == sum(each[tag]["avg"] for each in own)
    counts = [each["request_latency"]["count"] for each in own]
    assert joint["total"]["request_latency"]["count"] == sum(counts)
    assert (folder / "report.html").is_file()
    assert (folder / "east" / "report.html").is_file()


def swept(benchmark: Config) -> None:
    benchmark["load"].update(concurrency=1, duration="3s")
    benchmark["experiment"] = {"product": {"load.concurrency": [1, 4]}, "repetitions": 2}


def test_trials_start_together_in_both_clusters(runner: Runner) -> None:
    in_clusters(runner, "east", "west")
    runner.change(swept)
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code in FINISHED, ended.errors
    folder, joint = joint_of(runner)
    assert joint == json.loads(ended.out)["results"]
    trials, starts = joint["total"]["trials"], joint["starts"]
    assert [each["parameters"]["load.concurrency"] for each in trials] == [1, 4, 1, 4]
    for trial, start in zip(trials, starts, strict=True):
        assert start["total_of"] == ["east", "west"]
        late_ms = start["start_spread_ms"] - start["start_uncertainty_ms"]
        assert late_ms < LATE * start["interval_s"] * 1e3
        paths = (
            folder / name / "trials" / trial["folder"] / "profile_export_aiperf.json"
            for name in ("east", "west")
        )
        own = [json.loads(path.read_bytes())["aiperf_svc"]["accounts"] for path in paths]
        assert [each["violations"] for each in own] == [[], []]
        count = sum(each["completed"] for each in own)
        assert trial["values"]["request_count_avg"] == count
        assert trial["values"]["request_latency_count"] == count
    assert [len(each["combinations"]) for each in joint["members"]] == [2, 2]


def searched(benchmark: Config) -> None:
    benchmark["deployment"]["ttl"] = "1h"
    benchmark["load"].update(concurrency=1, duration="3s")
    search = {"parameter": "load.concurrency", "from": 1, "to": 2, "maximize": "request_throughput"}
    benchmark["experiment"] = {"search": search}


def test_search_tries_each_load_in_both_clusters(runner: Runner) -> None:
    in_clusters(runner, "east", "west")
    runner.change(searched)
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code in FINISHED, ended.errors
    folder, joint = joint_of(runner)
    trials = joint["total"]["trials"]
    assert [each["parameters"]["load.concurrency"] for each in trials] == [1, 2]
    for trial in trials:
        paths = (
            folder / name / "trials" / trial["folder"] / "profile_export_aiperf.json"
            for name in ("east", "west")
        )
        own = [json.loads(path.read_bytes())["request_count"]["avg"] for path in paths]
        assert trial["values"]["request_count_avg"] == sum(own)


def tried_again(benchmark: Config) -> None:
    benchmark["load"]["duration"] = "3s"
    benchmark["experiment"] = {"product": {"load.concurrency": [4]}, "retries": 1}


def test_failed_trial_is_run_again_in_all_clusters(runner: Runner) -> None:
    in_clusters(runner, "east", "nowhere")
    runner.change(tried_again)
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain")
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    folder, _ = joint_of(runner)
    names = sorted(path.name for path in (folder / "east" / "trials").iterdir())
    assert [name.partition("-attempt")[2] for name in names] == ["", "2"]


def of_two_targets(benchmark: Config) -> None:
    benchmark["deployment"]["ttl"] = "1h"
    benchmark["load"].update(concurrency=1, duration="3s")
    benchmark["targets"] = [{"name": name, "endpoint": {"model": name}} for name in ("a", "b")]
    benchmark["experiment"] = {"product": {"workers.max": [1, 2]}, "retries": 0}


def test_targets_in_two_clusters_run_shapes_in_rounds(runner: Runner, cluster: Cluster) -> None:
    in_clusters(runner, "east", "west")
    runner.change(of_two_targets)
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code in FINISHED, ended.errors
    _, joint = joint_of(runner)
    names = ["east-a", "east-b", "west-a", "west-b"]
    assert [each["name"] for each in joint["members"]] == names
    assert [each["total_of"] for each in joint["starts"]] == [names, names]
    for name in names:
        for number in (1, 2):
            assert cluster.left_of(f"{runner.name}-{name}-{number}") == []


def shapes_of_two_trials(benchmark: Config) -> None:
    benchmark["deployment"]["ttl"] = "1h"
    benchmark["load"]["duration"] = "3s"
    benchmark["experiment"] = {"product": {"workers.max": [1, 2], "load.concurrency": [1, 4]}}


def test_interrupted_rounds_of_two_clusters_resume(runner: Runner, cluster: Cluster) -> None:
    in_clusters(runner, "east", "west")
    runner.change(shapes_of_two_trials)
    command_line = ("run", runner.name, "--yes", "--ui", "plain", "--json")
    with runner.start(*command_line) as command:
        for words in ("trial 1 of 4  profiling: ", "ended: done", "trial 3 of 4  profiling: "):
            command.wait_for(words)
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.errors
    folder, _ = joint_of(runner)
    before = {name: trials_of(folder / name)[:2] for name in ("east", "west")}

    ended = runner.call(*command_line, "--resume", str(folder))
    assert ended.code in FINISHED, ended.errors
    assert "trial 1 of 4" not in ended.errors
    _, joint = joint_of(runner)
    assert joint == json.loads(ended.out)["results"]
    assert [each["total_of"] for each in joint["starts"]] == [["east", "west"]] * 4
    for name, finished in before.items():
        trials = trials_of(folder / name)
        assert ([each["state"] for each in trials], trials[:2]) == (["done"] * 4, finished)
        for number in (1, 2):
            assert cluster.left_of(f"{runner.name}-{name}-{number}") == []


def test_failing_cluster_leaves_the_other_results(runner: Runner) -> None:
    in_clusters(runner, "east", "nowhere")
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain")
    assert ended.code == ExitCode.BENCHMARK_FAILED
    assert "nowhere  error: " in ended.errors
    folder, joint = joint_of(runner)
    assert joint["total_of"] == ["east"]
    assert joint["notes"] == ["the total is without nowhere"]
    east, nowhere = joint["members"]
    assert (east["state"], nowhere["state"], nowhere["folder"]) == ("done", "failed", "")
    assert joint["total"]["request_count"] == east["metrics"]["request_count"]
    assert not (folder / "nowhere").exists()


def with_targets(benchmark: Config) -> None:
    benchmark["targets"] = [
        {"name": "parts", "endpoint": {"streaming": True}},
        {"name": "whole", "endpoint": {"streaming": False}},
    ]


def test_each_target_has_its_own_stack(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.change(with_targets)
    monkeypatch.undo()  # one cluster, which the flag names
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain")
    assert ended.code in FINISHED
    _, joint = joint_of(runner)
    assert joint["total_of"] == ["parts", "whole"]
    parts, whole = joint["members"]
    assert "time_to_first_token" in parts["metrics"]
    assert "time_to_first_token" not in whole["metrics"]
    counts = [each["metrics"]["request_count"]["avg"] for each in (parts, whole)]
    assert joint["total"]["request_count"]["avg"] == sum(counts)


def kept(benchmark: Config) -> None:
    benchmark["load"].update(duration="3m")


def test_commands_find_the_stacks_of_all_clusters(runner: Runner, cluster: Cluster) -> None:
    in_clusters(runner, "east", "west")
    runner.change(kept)
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--keep") as command:
        command.wait_for("profiling: ")
        status = runner.call("status", runner.name)
        assert sorted(line.split()[0] for line in status.out.splitlines()) == ["east", "west"]
        assert runner.call("cancel", runner.name).code == ExitCode.OK
        assert command.end().code == ExitCode.INTERRUPTED
    assert cluster.of_stack(f"{runner.name}-east") != []
    fetched = runner.call("results", runner.name, "--artifact-dir", "fetched", "--json")
    results = json.loads(fetched.out)["results"]
    assert results["total_of"] == ["east", "west"]
    assert runner.call("gc", runner.name, "--yes").code == ExitCode.OK
