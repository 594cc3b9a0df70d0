"""Stacks that are kept after a failure, and runners without an observer."""

import json
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.commands import run
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import UP, Runner, in_checkout, plain_environ
from tests.support.stack.real_stack import DESTROY_S, Config, Stack, run_all, shrink

pytestmark = pytest.mark.cluster
NO_IMAGE = "localhost/there-is-none:1"


def destroy_with_pulumi(runner: Runner) -> None:
    """Destroy the stack with the plain CLI in a checkout, on the runner's state."""
    in_checkout(runner)
    environ = plain_environ(runner)
    command = ("pulumi", "destroy", "-y", "-s", runner.name, "--non-interactive")
    run(command, environ=environ, folder=runner.folder, timeout_s=DESTROY_S)


def test_kept_stack_is_destroyed_by_pulumi(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(lambda benchmark: benchmark["load"].update(duration="4m"))
    ended = runner.run("--keep-on-failure", "--timeout", "75s")
    assert ended.code == ExitCode.BENCHMARK_FAILED
    assert f"kept: stack {runner.name} in namespace " in ended.errors
    assert "Unclosed" not in ended.errors
    assert cluster.of_stack(runner.name) != []

    status = runner.call("status", runner.name)
    assert status.code == ExitCode.OK
    assert status.out.startswith("cancelled (--timeout): ")
    assert f"results: aiperf-svc results {runner.name}" in status.out
    shown = runner.call("status", runner.name, "--json")
    assert shown.code == ExitCode.OK, shown.out
    printed = json.loads(shown.out)
    assert (printed["state"], printed["exit_code"]) == ("cancelled", None)
    fetched = runner.call("results", runner.name, "--artifact-dir", "fetched", "--json")
    assert json.loads(fetched.out)["results"] == runner.summary()

    destroy_with_pulumi(runner)
    assert cluster.left_of(runner.name) == []
    # Only the local record of the run is left.
    assert f"removed: {runner.name}" in runner.gc().errors
    assert runner.name not in runner.gc().errors
    assert runner.call("status", runner.name).code == ExitCode.ERROR


def test_runner_without_terminal_removes_its_stack(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(UP)
        command.leave()
        ended = command.end()
    printed = json.loads(ended.out)
    assert (ended.code in FINISHED, printed["state"], printed["left"]) == (True, "done", [])
    assert cluster.left_of(runner.name) == []


def test_gc_refuses_beside_a_pulumi_at_work(
    cluster: Cluster, make_stack: Callable[[], Stack], make_runner: Callable[[], Runner]
) -> None:
    stack, helper = make_stack(), make_runner()

    def never_ready(benchmark: Config) -> None:
        benchmark["deployment"]["ready_timeout"] = "40s"

    stack.change(shrink)
    stack.change(never_ready)
    stack.environ["AIPERF_IMAGE"] = NO_IMAGE
    helper.environ["PULUMI_BACKEND_URL"] = stack.state.as_uri()

    def refused() -> None:
        label = ("-l", f"aiperf.dev/stack={stack.name}")
        there = cluster.wait_for_objects("namespaces", *label)
        before = [found["metadata"]["uid"] for found in there]
        ended = helper.call("gc", stack.name, "--yes")
        assert ended.code == ExitCode.ERROR, ended.errors
        assert "Pulumi is working on it" in ended.errors
        after = cluster.objects("namespaces", *label)
        assert [found["metadata"]["uid"] for found in after] == before
        assert "deletionTimestamp" not in after[0]["metadata"]

    run_all(stack.try_up, refused)
    stack.destroy()
    assert cluster.left_of(stack.name) == []
