"""The runner's whole path from a stack file to results and removal, and stacks that it keeps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED, assert_only_the_user_reads
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import PREFLIGHT, RUN, UP, Runner

pytestmark = pytest.mark.cluster


@pytest.mark.gate
def test_run_leaves_nothing_and_gc_ignores_it(
    cluster: Cluster, make_runner: Callable[[], Runner], temporary: Path
) -> None:
    runner = make_runner()
    runner.environ["TMPDIR"] = str(temporary)
    runner.use("bench-smoke")
    (runner.folder / "queue.py").write_text("raise SystemExit('a file beside the user')\n")
    committed = runner.file.read_bytes()
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(UP)
        refused = runner.call("gc", runner.name, "--yes")
        assert refused.code == ExitCode.ERROR
        assert "is working on it" in refused.errors
        ended = command.end()
    printed = json.loads(ended.out)
    assert ended.code in FINISHED
    assert (printed["exit_code"], printed["state"], printed["left"]) == (ended.code, "done", [])
    assert printed["not_checked"] == []
    summary = runner.summary()
    assert summary["request_count"]["avg"] > 0
    assert summary["run_info"]["cli_command"].startswith(f"aiperf-svc run {runner.name} --yes")
    (results,) = runner.artifacts.iterdir()
    assert json.loads((results / "inputs.json").read_bytes())["data"]
    assert_only_the_user_reads(results)
    logs = {path.name.partition("-bench-")[0] for path in (results / "logs").iterdir()}
    assert {"system-controller", "records-manager", "worker"} <= logs
    assert cluster.left_of(runner.name) == []
    assert runner.file.read_bytes() == committed
    assert list(temporary.iterdir()) == []
    assert [path.name for path in (runner.state_home / "runs").iterdir()] == [f"{runner.name}.lock"]


def test_run_stays_in_the_context_it_began_with(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    kubeconfig, second, runner.place = runner.folder / "first", runner.folder / "second", ()
    runner.environ["KUBECONFIG"] = f"{kubeconfig}:{second}"
    content = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    second.write_text(json.dumps(content))
    content["clusters"] = [{"name": "other", "cluster": {"server": "https://127.0.0.1:9"}}]
    content["contexts"] = [{"name": "other", "context": {"cluster": "other", "user": "other"}}]
    content["users"] = [{"name": "other", "user": {}}]
    kubeconfig.write_text(json.dumps(content | {"current-context": cluster.context}))
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(PREFLIGHT)
        kubeconfig.write_text(json.dumps(content | {"current-context": "other"}))
        ended = command.end()
    printed = json.loads(ended.out)
    assert ended.code in FINISHED, ended.errors
    assert (printed["state"], printed["left"]) == ("done", [])
    assert cluster.left_of(runner.name) == []


def test_kept_stack_has_results_until_gc(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    ended = runner.run("--keep")
    assert ended.code in FINISHED
    assert f"aiperf-svc gc {runner.name}" in ended.errors
    assert cluster.of_stack(runner.name) != []
    status = runner.call("status", runner.name, "--json")
    assert json.loads(status.out)["state"] == "done"
    fetched = runner.call("results", runner.name, "--artifact-dir", "fetched", "--json")
    assert json.loads(fetched.out)["results"] == runner.summary()

    # An unchanged stack is the same run, so its results do not count for a second run.
    there = cluster.of_stack(runner.name)
    again = runner.run()
    assert (again.code, cluster.of_stack(runner.name)) == (ExitCode.ERROR, there)
    assert "would measure nothing" in again.errors
    assert runner.summary()
    assert runner.gc().code == ExitCode.OK
    assert cluster.left_of(runner.name) == []


def test_run_cancelled_by_another_command_is_collected(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(lambda benchmark: benchmark["load"].update(duration="4m"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        assert runner.call("cancel", runner.name).code == ExitCode.OK
        assert command.end().code == ExitCode.INTERRUPTED
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.left_of(runner.name) == []


def test_timeout_ends_a_run_and_keeps_results(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(lambda benchmark: benchmark["load"].update(duration="4m"))
    ended = runner.run("--timeout", "75s")
    assert ended.code == ExitCode.BENCHMARK_FAILED
    assert "--timeout: the run was stopped at the time limit" in ended.out
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.left_of(runner.name) == []


def test_unpullable_image_is_reported_before_creation(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.environ["AIPERF_IMAGE"] = "localhost/there-is-none:1"
    ended = runner.run("--json")
    printed = json.loads(ended.out)
    assert (ended.code, printed["state"]) == (ExitCode.ERROR, "failed")
    assert "image 'localhost/there-is-none:1' cannot be pulled" in printed["reason"]
    assert not runner.artifacts.exists()
    assert cluster.left_of(runner.name) == []
