"""An experiment on a cluster resumes after its runner was killed with `kill -9`."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED, trials_of
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import UP, Runner

pytestmark = pytest.mark.cluster
SLOW = ["--ttft", "200ms", "--itl", "10ms", "--tokens", "16"]
FAST = ["--ttft", "40ms", "--itl", "10ms", "--tokens", "16"]


def two_targets(benchmark: dict[str, Any]) -> None:
    benchmark["load"]["duration"] = "4s"
    benchmark["experiment"] = {
        "product": {"deployment.target.args": [SLOW, FAST], "load.concurrency": [1, 4]}
    }
    benchmark["deployment"]["ttl"] = "2h"


def kill_when(runner: Runner, words: str, *flags: str) -> None:
    """Kill a run when its output contains these words."""
    with runner.start("run", runner.name, "--yes", "--ui", "plain", *flags) as command:
        command.wait_for(words)
        command.kill()


@pytest.mark.gate
def test_killed_runner_loses_and_repeats_no_trial(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(two_targets)
    kill_when(runner, "trial 1 of 4  profiling: ")
    (folder,) = runner.artifacts.glob("*/")
    assert trials_of(folder) == []
    refused = runner.run()
    assert refused.code != ExitCode.OK
    assert "resume it from the folder of the command that ended (--resume)" in refused.errors

    # The run of the stack that is up is followed. The runner is killed again in the other shape.
    kill_when(runner, UP, "--resume", str(folder))
    first = trials_of(folder)
    assert [(each["number"], each["state"]) for each in first] == [(1, "done"), (2, "done")]

    # Nothing is up now, so uncollected trials run again.
    removed = runner.call("gc", runner.name, "--yes")
    assert removed.code == ExitCode.OK, removed.errors
    assert f"--resume {folder.absolute()} continues its experiment instead" in removed.errors
    ended = runner.run("--json", "--resume", str(folder))
    assert ended.code in FINISHED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert cluster.left_of(runner.name) == []
    assert "shape 1 of 2" not in ended.errors
    assert trials_of(folder) == found["results"]["trials"]
    assert trials_of(folder)[:2] == first
    assert [(each["number"], each["state"]) for each in trials_of(folder)] == [
        (number, "done") for number in range(1, 5)
    ]
    slow, fast = (trials_of(folder)[n]["values"]["time_to_first_token_p50"] for n in (0, 2))
    assert fast < 150 < slow
    assert (folder / "profile_runs" / "run_0004" / "report.html").exists()
    again = runner.run("--json", "--resume", str(folder))
    assert again.code in FINISHED, again.errors
    assert "all trials have finished" in again.errors
    assert json.loads(again.out)["results"]["trials"] == trials_of(folder)


def test_interrupted_experiment_resumes_with_remaining_trials(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()

    def sweep(benchmark: dict[str, Any]) -> None:
        benchmark["load"]["duration"] = "4s"
        benchmark["experiment"] = {"product": {"load.concurrency": [1, 2, 4]}}

    runner.change(sweep)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for("trial 2 of 3  profiling: ")
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.errors
    (folder,) = runner.artifacts.glob("*/")
    first, stopped = trials_of(folder)
    assert (first["state"], stopped["state"]) == ("done", "cancelled")
    ended = runner.run("--json", "--resume", str(folder))
    assert ended.code in FINISHED, ended.errors
    assert cluster.left_of(runner.name) == []
    assert trials_of(folder)[0] == first
    levels = [each["parameters"]["load.concurrency"] for each in trials_of(folder)]
    assert (levels, {each["state"] for each in trials_of(folder)}) == ([1, 2, 4], {"done"})
    assert (folder / "trials" / f"{stopped['folder']}-unfinished1").is_dir()
