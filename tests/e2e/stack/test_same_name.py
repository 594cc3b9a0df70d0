"""Two users choose the same stack name. The second is refused and the first is not affected."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.adapters.cluster.ownership import owner_name
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.commands import Ended, attempt
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner, in_checkout, plain_environ
from tests.support.stack.real_stack import UP_S, Config, Stack, run_all, shrink

pytestmark = pytest.mark.cluster
OWNER = owner_name()
NO_IMAGE = "localhost/there-is-none:1"


def uids(cluster: Cluster, stack: str) -> set[str]:
    """Return the UIDs of a stack's root object and pods, and whether any is being deleted."""
    label = ("-l", f"aiperf.dev/stack={stack}")
    found = [
        *cluster.objects("namespaces", *label),
        *cluster.objects("configmaps,deployments,pods", "-A", *label),
    ]
    assert not [each for each in found if "deletionTimestamp" in each["metadata"]]
    return {each["metadata"]["uid"] for each in found}


def somebody_else(runner: Runner, folder: Path) -> Runner:
    """Make a runner with the same stack file and its own state."""
    other = Runner(runner.cluster, runner.name, folder, image=runner.environ["AIPERF_IMAGE"])
    other.file.write_bytes(runner.file.read_bytes())
    return other


@pytest.mark.parametrize("mode", ["auto", "existing"])
def test_second_runner_is_refused_and_touches_nothing(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    owners_namespace: str,
    tmp_path: Path,
    mode: str,
) -> None:
    first = make_runner()
    if mode == "existing":
        where = {"mode": mode, "name": owners_namespace}
        first.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    second = somebody_else(first, tmp_path / "second")
    ended = first.run("--keep")
    assert ended.code in FINISHED, ended.errors
    before = uids(cluster, first.name)

    refused = second.run()
    assert refused.code == ExitCode.ERROR, refused.errors
    assert f"stack {first.name} is up already in namespace " in refused.errors
    assert f", of {OWNER}, from another state" in refused.errors
    assert uids(cluster, first.name) == before
    named = second.call("gc", first.name, "--yes")
    assert named.code == ExitCode.ERROR
    assert f" belongs to {OWNER}: this machine has no record or state of it" in named.errors
    assert uids(cluster, first.name) == before
    unasked = second.call("gc", "--yes")
    assert unasked.code == ExitCode.OK
    assert f"not touched: {first.name}: " in unasked.errors
    assert uids(cluster, first.name) == before

    assert first.call("gc", "--yes").code == ExitCode.OK
    assert cluster.left_of(first.name) == []


@pytest.mark.gate
def test_running_stack_is_kept_until_taken_over(
    cluster: Cluster, make_runner: Callable[[], Runner], tmp_path: Path
) -> None:
    first = make_runner()
    first.environ["AIPERF_OWNER"] = "alice@build"
    first.change(lambda benchmark: benchmark["load"].update(duration="4m"))
    second = somebody_else(first, tmp_path / "second")
    second.environ["AIPERF_OWNER"] = "bob@laptop"
    # Sharing the state does not permit a second run on a stack that is in use.
    third = somebody_else(first, tmp_path / "third")
    third.environ["PULUMI_BACKEND_URL"] = (first.state_home / "backend").as_uri()
    with first.start("run", first.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        before = uids(cluster, first.name)
        for other in (second, third):
            refused = other.call("gc", first.name, "--yes")
            assert refused.code == ExitCode.ERROR, refused.errors
            assert "alice@build" in refused.errors
            assert f" works on stack {first.name} in namespace " in refused.errors
            assert "--take-over" in refused.errors
            run = other.run()
            assert run.code == ExitCode.ERROR, run.errors
            assert "alice@build" in run.errors
        unasked = first.call("gc", "--yes")
        assert unasked.code == ExitCode.OK, unasked.errors
        assert f"not touched: {first.name}: " in unasked.errors
        assert_plain_pulumi_is_refused(third)
        assert uids(cluster, first.name) == before

        taken = second.call("gc", first.name, "--yes", "--take-over")
        assert taken.code == ExitCode.OK, taken.errors
        assert "taking over: alice@build" in taken.errors
        ended = command.end()
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    assert f"stack {first.name} was taken over by bob@laptop" in ended.errors
    assert "was deleted during the run" not in ended.errors
    assert cluster.left_of(first.name) == []


def test_owner_takes_over_their_own_running_stack(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(lambda benchmark: benchmark["load"].update(duration="4m"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        refused = runner.call("gc", runner.name, "--yes")
        assert refused.code == ExitCode.ERROR, refused.errors
        assert "is working on it" in refused.errors
        taken = runner.call("gc", runner.name, "--yes", "--take-over")
        ended = command.end()
    assert taken.code == ExitCode.OK, taken.errors
    assert "taking over: " in taken.errors
    assert f"removed: {runner.name}; its own run has removed it" in taken.errors
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    assert f"stack {runner.name} was taken over by {OWNER}" in ended.errors
    assert cluster.left_of(runner.name) == []


def assert_plain_pulumi_is_refused(runner: Runner) -> None:
    """Plain `pulumi` on the runner's state changes nothing and names the user of the stack."""
    in_checkout(runner)
    flags = ("-y", "--skip-preview", "-s", runner.name, "--non-interactive")
    for words in (("up",), ("destroy", "--run-program")):
        command, environ = ("pulumi", *words, *flags), plain_environ(runner)
        ended = attempt(command, environ=environ, folder=runner.folder, timeout_s=UP_S)
        assert ended.code != 0, words
        assert f" works on stack {runner.name} in namespace " in ended.out + ended.errors


def test_second_user_of_a_state_is_refused(
    cluster: Cluster, make_stack: Callable[[], Stack], image: str, tmp_path: Path
) -> None:
    stack = make_stack()

    def slow_to_fail(benchmark: Config) -> None:
        benchmark["deployment"]["ready_timeout"] = "60s"

    stack.change(shrink)
    second = Runner(cluster, stack.name, tmp_path / "second", image=image)
    second.file.write_bytes(stack.file.read_bytes())
    second.environ["PULUMI_BACKEND_URL"] = stack.state.as_uri()
    stack.change(slow_to_fail)
    stack.environ["AIPERF_IMAGE"] = NO_IMAGE

    def refused() -> None:
        label = ("-l", f"aiperf.dev/stack={stack.name}")
        cluster.wait_for_objects("deployments", "-A", *label)
        spaces = cluster.objects("namespaces", *label)
        ended = second.run()
        assert ended.code == ExitCode.ERROR, ended.errors
        assert "another process holds its state, and nothing was created" in ended.errors
        assert "destroying the stack" not in ended.errors
        after = cluster.objects("namespaces", *label)
        assert [each["metadata"]["uid"] for each in after] == [
            each["metadata"]["uid"] for each in spaces
        ]
        assert "deletionTimestamp" not in after[0]["metadata"]
        assert list((second.state_home / "runs").glob("*.json")) == []

    run_all(stack.try_up, refused)
    stack.destroy()
    assert cluster.left_of(stack.name) == []


def assert_is_of_another_state(ended: Ended, owner: str) -> None:
    """Plain `pulumi up` changed nothing and names the owner of the running stack."""
    output = " ".join((ended.out + ended.errors).split())
    assert ended.code != 0, output
    assert " is up already in namespace " in output
    assert f", of {owner}, from another state than this one's" in output
    assert "Nothing was changed" in output


@pytest.mark.parametrize("mode", ["auto", "existing"])
def test_plain_up_changes_only_stacks_of_its_state(
    cluster: Cluster,
    make_stack: Callable[[], Stack],
    image: str,
    owners_namespace: str,
    tmp_path: Path,
    mode: str,
) -> None:
    first = make_stack()
    first.change(shrink)
    if mode == "existing":
        where = {"mode": mode, "name": owners_namespace}
        first.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    second = Stack(cluster, first.name, tmp_path / "second", image=image)
    second.file.write_bytes(first.file.read_bytes())
    second.environ["AIPERF_OWNER"] = "bob@laptop"
    first.up()
    before = uids(cluster, first.name)
    assert_is_of_another_state(second.try_up(), OWNER)
    first.up("--expect-no-changes")
    assert uids(cluster, first.name) == before

    # The second stack has the object names that the first state contains.
    namespace = first.outputs()["namespace"]
    anchor = ("configmap", f"anchor-{first.name}", "-n", namespace)
    root = ("namespace", namespace) if mode == "auto" else anchor
    cluster.kubectl("delete", *root, timeout_s=120.0)
    assert cluster.left_of(first.name) == []
    second.up()
    before = uids(cluster, first.name)
    assert_is_of_another_state(first.try_up(), "bob@laptop")
    assert uids(cluster, first.name) == before
    second.destroy()
    first.destroy()
    assert cluster.left_of(first.name) == []


def test_plain_up_continues_after_a_failed_one(
    cluster: Cluster, make_stack: Callable[[], Stack]
) -> None:
    stack = make_stack()
    stack.change(shrink)
    stack.change(lambda benchmark: benchmark["deployment"].update(ready_timeout="60s"))
    image = stack.environ["AIPERF_IMAGE"]
    stack.environ["AIPERF_IMAGE"] = NO_IMAGE
    assert stack.try_up().code != 0
    label = ("-l", f"aiperf.dev/stack={stack.name}")
    spaces = [each["metadata"]["uid"] for each in cluster.objects("namespaces", *label)]
    stack.environ["AIPERF_IMAGE"] = image
    stack.up()
    after = [each["metadata"]["uid"] for each in cluster.objects("namespaces", *label)]
    assert len(spaces) == 1
    assert after == spaces
    stack.destroy()
    assert cluster.left_of(stack.name) == []


def test_gc_keeps_a_namesake_in_the_same_namespace(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str, tmp_path: Path
) -> None:
    first = make_runner()
    where = {"mode": "existing", "name": owners_namespace}
    first.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    second = somebody_else(first, tmp_path / "second")
    ended = first.run("--keep")
    assert ended.code in FINISHED, ended.errors
    # The time to live removes it in the same way.
    cluster.kubectl("delete", "configmap", f"anchor-{first.name}", "-n", owners_namespace)
    assert cluster.left_of(first.name) == []
    ended = second.run("--keep")
    assert ended.code in FINISHED, ended.errors
    before = uids(cluster, first.name)

    unasked = first.call("gc", "--yes")
    assert unasked.code == ExitCode.OK, unasked.errors
    assert f"not touched: {first.name}: " in unasked.errors
    named = first.call("gc", first.name, "--yes")
    assert named.code == ExitCode.ERROR, named.errors
    assert "now contains another stack" in named.errors
    assert uids(cluster, first.name) == before

    assert second.call("gc", "--yes").code == ExitCode.OK
    assert first.call("gc", first.name, "--yes").code == ExitCode.OK
    assert cluster.left_of(first.name) == []
    assert list((first.state_home / "runs").glob("*.json")) == []
