"""Shapes of an experiment as indexes of a Job on a real cluster."""

import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.jobs.cluster_jobs import DELETED
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config, Stack

# Runs alone, because the pods of several indexes need the whole node.
pytestmark = [pytest.mark.cluster, pytest.mark.alone]

TTFT_MS = (20, 60, 100, 140, 180)
KILLED, CRASHING = 1, 5
"""Indexes of a server that is killed in its first attempt, and of one that ends at once."""
KILL_SERVER = """import os, sys
own = {1, os.getpid()}
for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
    if pid not in own and b"mock_server" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(pid, 9)
        sys.exit()
sys.exit(1)
"""
TRIALS = "import glob; print([open(f).read() for f in glob.glob('/artifacts/*/experiment.json')])"
MEMORY, CONCURRENCY = "deployment.target.memory", "load.concurrency"
FOUND_S = 120.0


def six_servers(benchmark: Config) -> None:
    """Run six servers as indexes of one Job, three at a time."""
    args = [["--ttft", f"{each}ms", "--itl", "4ms", "--tokens", "8"] for each in TTFT_MS]
    benchmark["experiment"] = {
        "product": {"deployment.target.args": [*args, ["--no-such-flag"]]},
        "parallel": 3,
        "fan_out": "jobs",
        "retries": 1,
    }
    benchmark["load"]["duration"] = "8s"


def two_jobs(benchmark: Config) -> None:
    """Run two servers with different pods, which makes two Jobs of one index with two trials each.
    These are not repetitions, because an invalid repetition would run again."""
    benchmark["experiment"] = {
        "product": {MEMORY: ["128Mi", "144Mi"], CONCURRENCY: [1, 2]},
        "parallel": 2,
        "fan_out": "jobs",
    }
    benchmark["load"]["duration"] = "8s"


def index_pods(
    cluster: Cluster, stack: str, index: int, *, job: str = "index-1"
) -> list[dict[str, Any]]:
    """Return the running pods of an index and their namespaces."""
    return [
        pod["metadata"]
        for pod in cluster.pods_of(stack, job)
        if pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == str(index)
        and pod["status"]["phase"] == "Running"
    ]


def kill_server(cluster: Cluster, stack: str, index: int) -> None:
    """Kill the server of an index with SIGKILL as soon as its pod runs."""
    until = time.monotonic() + FOUND_S
    while not (found := index_pods(cluster, stack, index)):
        assert time.monotonic() < until, f"no pod of index {index} has run"
    place = ("-n", found[0]["namespace"], found[0]["name"], "-c", "target")
    cluster.kubectl("exec", *place, "--", "python", "-c", KILL_SERVER)


def test_failed_index_of_a_job_is_retried(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.use("bench-variants")
    runner.change(six_servers)
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        kill_server(cluster, runner.name, KILLED)
        ended = command.end()
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert cluster.left_of(runner.name) == []
    trials = found["results"]["trials"]
    states = [trial["state"] for trial in trials]
    assert states == ["done"] * len(TTFT_MS) + ["failed"], ended.errors
    assert "the server ended with exit code 2 before it was ready" in trials[CRASHING]["reason"]
    for trial, ttft_ms in zip(trials, TTFT_MS, strict=False):
        measured_ms = trial["values"]["time_to_first_token_p50"]
        assert ttft_ms <= measured_ms < ttft_ms + 40, trial
    (folder,) = runner.artifacts.glob("*/")
    assert len(list((folder / "trials").iterdir())) == len(TTFT_MS)
    assert json.loads((folder / "experiment.json").read_bytes()) == found["results"]


def test_ctrl_c_keeps_finished_trials(cluster: Cluster, make_runner: Callable[[], Runner]) -> None:
    runner = make_runner()
    runner.use("bench-variants")
    runner.change(six_servers)
    runner.change(lambda benchmark: benchmark["experiment"].update(parallel=1))
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for("trial 1 (")
        command.wait_for("1 pod at work")
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert found["results"]["trials"][0]["state"] == "done"
    assert len(found["results"]["trials"]) < len(TTFT_MS)
    assert cluster.left_of(runner.name) == []


@pytest.mark.gate
def test_plain_pulumi_runs_all_indexes_and_removes_everything(
    make_stack: Callable[[], Stack], cluster: Cluster, tmp_path: Path
) -> None:
    stack = make_stack()
    stack.use("bench-variants")
    stack.change(six_servers)
    stack.change(lambda benchmark: benchmark["load"].update(duration="3s"))
    stack.change(lambda benchmark: benchmark["experiment"].update(retries=0))
    stack.up()
    status, results = stack.measure(stack.outputs(), tmp_path)
    assert status.state == "done", status
    assert [t["state"] for t in results["trials"]] == ["done"] * len(TTFT_MS) + ["failed"]
    assert len(list((tmp_path / "trials").iterdir())) == len(TTFT_MS)
    stack.destroy()
    assert cluster.left_of(stack.name) == []


def test_status_results_and_gc_work_after_killed_runner(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.use("bench-variants")
    runner.change(six_servers)
    runner.change(lambda benchmark: benchmark["load"].update(duration="3s"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for("3 pods at work")
        command.send(signal.SIGKILL)
        command.end()
    waited = runner.call("status", runner.name, "--wait")
    assert waited.code == ExitCode.OK, waited.errors
    assert "done: 6 trials, 1 failed" in waited.out
    fetched = runner.call("results", runner.name)
    assert fetched.code == ExitCode.BENCHMARK_FAILED, fetched.errors
    assert "left out: trial 6" in fetched.out
    removed = runner.call("gc", runner.name, "--yes")
    assert removed.code == ExitCode.OK, removed.errors
    assert cluster.left_of(runner.name) == []


def wait_for_a_trial(cluster: Cluster, stack: str, job: str) -> str:
    """Wait until the index of a Job has ended a trial and return the index's namespace."""
    until = time.monotonic() + FOUND_S
    while time.monotonic() < until:
        for pod in index_pods(cluster, stack, 0, job=job):
            listed = ("exec", "-n", pod["namespace"], pod["name"], "-c", job, "--", "python", "-c")
            with contextlib.suppress(AssertionError):  # its pod is starting or ending
                if "done" in cluster.kubectl(*listed, TRIALS):
                    return str(pod["namespace"])
    raise AssertionError(f"no trial of {job} has ended")


def test_only_shapes_with_unpullable_images_fail(
    cluster: Cluster, image: str, make_runner: Callable[[], Runner]
) -> None:
    def with_images(benchmark: Config) -> None:
        command = ["python", "-m", "aiperf_svc.mock_server", "--host", "0.0.0.0", "--port", "8000"]
        target = benchmark["deployment"]["target"]
        target |= {"kind": "custom", "command": command, "image": image, "port": 8000}
        target["args"] = ["--tokens", "8"]
        benchmark["experiment"] = {
            "product": {
                "deployment.target.image": [image, "localhost/there-is-none:1"],
                "deployment.target.memory": ["128Mi", "144Mi"],
            },
            "parallel": 2,
            "fan_out": "jobs",
        }

    runner = make_runner()
    runner.use("bench-variants")
    runner.change(with_images)
    ended = runner.run("--json")
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert cluster.left_of(runner.name) == []
    trials = found["results"]["trials"]
    assert [trial["state"] for trial in trials] == ["done", "done", "failed", "failed"]
    for trial in trials[2:]:
        assert "image 'localhost/there-is-none:1' cannot be pulled" in trial["reason"]


def test_ended_trials_survive_collector_and_job(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.use("bench-variants")
    runner.change(two_jobs)
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for("2 pods at work")
        (collector,) = (pod["metadata"] for pod in cluster.pods_of(runner.name, "collector"))
        place = ("-n", collector["namespace"])
        end = "import os; os.kill(1, 15)"
        cluster.kubectl("exec", *place, collector["name"], "--", "python", "-c", end)
        command.wait_for("it restarts, and continues")
        wait_for_a_trial(cluster, runner.name, "index-2")
        cluster.kubectl("delete", "job", f"index-2-{runner.name}", *place)
        ended = command.end()
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert cluster.left_of(runner.name) == []
    trials = found["results"]["trials"]
    states = {(t["parameters"][MEMORY], t["parameters"][CONCURRENCY]): t for t in trials}
    assert {key: trial["state"] for key, trial in states.items()} == {
        ("128Mi", 1): "done",
        ("128Mi", 2): "done",
        ("144Mi", 1): "done",
        ("144Mi", 2): "failed",
    }
    assert states["144Mi", 2]["reason"] == DELETED


def test_resumed_guest_loses_no_trial(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    before = cluster.of_namespace(owners_namespace)
    runner = make_runner()
    runner.use("bench-variants")
    runner.change(two_jobs)

    def as_guest(benchmark: Config) -> None:
        benchmark["deployment"]["namespace"] = {"mode": "existing", "name": owners_namespace}

    runner.change(as_guest)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for("2 pods at work")
        command.kill()
    (folder,) = runner.artifacts.glob("*/")
    ended = runner.run("--json", "--resume", str(folder))
    assert ended.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), ended.errors
    assert "is up and runs these trials" in ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert cluster.left_of(runner.name) == []
    assert cluster.of_namespace(owners_namespace) == before
    assert [trial["state"] for trial in found["results"]["trials"]] == ["done"] * 4
    assert len(list((folder / "trials").iterdir())) == 4
