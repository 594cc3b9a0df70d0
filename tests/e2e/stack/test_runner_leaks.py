"""Obstacles to the removal of a stack, and lost state, are found by inspecting the cluster."""

import json
import shutil
from collections.abc import Callable

import pytest

from aiperf_svc.adapters.cluster.ownership import owner_name
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config, Stack, shrink

pytestmark = pytest.mark.cluster


def with_short_timeouts(benchmark: Config) -> None:
    benchmark["deployment"]["delete_timeout"] = "20s"
    # Long enough that it is observed.
    benchmark["load"]["duration"] = "15s"


@pytest.mark.gate
def test_object_with_finalizer_is_reported(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(with_short_timeouts)
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(RUN)
        label = ("-l", f"aiperf.dev/stack={runner.name}")
        (found,) = cluster.objects("namespaces", *label)
        namespace = found["metadata"]["name"]
        metadata = {"name": "held", "namespace": namespace, "finalizers": ["tests.aiperf.dev/held"]}
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        ended = command.end()
    try:
        assert ended.code == ExitCode.LEAKED, ended.errors
        left = json.loads(ended.out)["left"]
        assert any("held" in each for each in left)
        assert any(namespace in each for each in left)
        assert all(each in ended.errors for each in left)
        # The waiting message appears long before the end and names who must act.
        held = f"ConfigMap {namespace}/held, until the owner of the finalizer tests.aiperf.dev/held"
        assert ended.errors.count("still removing after ") > 3
        assert held in ended.errors.partition("objects are left")[0]
    finally:
        nothing = json.dumps({"metadata": {"finalizers": None}})
        merge = ("--type=merge", "-p", nothing)
        cluster.kubectl("patch", "configmap", "held", "-n", namespace, *merge)
    assert runner.gc().code == ExitCode.OK
    assert cluster.left_of(runner.name) == []


def test_gc_removes_stack_without_state_only_with_takeover(
    cluster: Cluster, make_stack: Callable[[], Stack], make_runner: Callable[[], Runner]
) -> None:
    stack, stranger = make_stack(), make_runner()
    stack.change(shrink)
    stack.up()
    # From here on, its state is lost.
    stack.may_exist = False
    untouched = stranger.gc()
    assert f"not touched: {stack.name}: " in untouched.errors
    assert cluster.of_stack(stack.name) != []
    refused = stranger.call("gc", stack.name, "--yes")
    assert refused.code == ExitCode.ERROR
    assert f"belongs to {owner_name()}: this machine has no record or state" in refused.errors
    assert cluster.of_stack(stack.name) != []
    ended = stranger.call("gc", stack.name, "--yes", "--take-over")
    assert ended.code == ExitCode.OK, ended.errors
    assert f"removed: {stack.name}; nothing is left" in ended.errors
    assert cluster.of_stack(stack.name) == []


def test_gc_removes_recorded_stacks_without_state(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(shrink)
    kept = runner.run("--keep")
    assert kept.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), kept.errors
    assert " UTC\n" in kept.errors.partition("kept: stack ")[2]
    shutil.rmtree(runner.state_home / "backend")
    ended = runner.gc()
    assert ended.code == ExitCode.OK, ended.errors
    assert "is gone; using its record instead" in ended.errors
    assert cluster.left_of(runner.name) == []
    assert runner.name not in runner.gc().errors
