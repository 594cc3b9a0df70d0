"""A slow removal reports what it waits for."""

import json
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.node_pods import without_power
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config, shrink

pytestmark = pytest.mark.cluster
HELD = "example.com/held"


def test_gc_names_the_finalizer_that_it_waits_for(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(shrink)
    kept = runner.run("--keep")
    assert kept.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), kept.errors
    label = ("-l", f"aiperf.dev/stack={runner.name}")
    (lease,) = (each["metadata"] for each in cluster.objects("leases", "-A", *label))

    def set_finalizers(*names: str) -> None:
        patch = json.dumps({"metadata": {"finalizers": names}})
        where = ("-n", lease["namespace"], lease["name"])
        cluster.kubectl("patch", "lease", *where, "--type=merge", "-p", patch)

    set_finalizers(HELD)
    with runner.start("gc", runner.name, "--yes") as command:
        command.wait_for(f", until the owner of the finalizer {HELD} removes it")
        set_finalizers()
        ended = command.end()
    assert ended.code == ExitCode.OK, ended.errors
    assert "still removing after " in ended.errors
    assert cluster.left_of(runner.name) == []


@pytest.mark.two_nodes
def test_pods_of_a_silent_node_are_named(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    if not cluster.is_ours:
        pytest.skip("only nodes of tests/cluster are stopped")
    _, second = cluster.nodes()
    runner = make_runner()

    def on_second(benchmark: Config) -> None:
        where = {"node_selector": {"kubernetes.io/hostname": second}}
        benchmark["deployment"]["pods"]["worker"]["placement"] = where
        benchmark["load"]["duration"] = "4m"

    runner.change(shrink)
    runner.change(on_second)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        with without_power(cluster, second):
            # The run ends without its worker, and the removal begins.
            command.wait_for(f" on node {second}, which is not ready since ")
        ended = command.end()
    reports = [line for line in ended.errors.splitlines() if "still removing after " in line]
    assert reports, ended.errors
    # Once the node is back, its pods end, or `gc` removes the rest.
    collected = runner.gc()
    assert collected.code == ExitCode.OK, collected.errors
    assert cluster.left_of(runner.name) == []
