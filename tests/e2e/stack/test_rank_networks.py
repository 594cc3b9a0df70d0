"""iperf between ranks of a stack, on one node and between two nodes."""

import json
from collections.abc import Callable

import pytest

from tests.support.stack.rank_runs import make_small, results_of
from tests.support.stack.rank_runs import measure as measure_stack
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config

pytestmark = pytest.mark.cluster


@pytest.fixture
def runner(make_runner: Callable[[], Runner], rank_image: Callable[[str], str]) -> Runner:
    """Make a stack that runs iperf twice for three seconds with small pods."""
    runner = make_runner()
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = rank_image("iperf/Containerfile")
    runner.use("bench-iperf")

    def make_short(benchmark: Config) -> None:
        benchmark["workload"].update(streams=2, duration="3s")
        benchmark["repetitions"] = 2

    runner.change(make_short)
    runner.change(make_small())
    return runner


def measure(cluster: Cluster, runner: Runner, nodes: object) -> None:
    """Run to the end and check that both pods' interfaces carried the bytes that iperf3 reports."""
    runner.change(lambda benchmark: benchmark["deployment"]["ranks"].update(nodes=nodes))
    results = measure_stack(cluster, runner)
    assert results["metrics"][0]["info"]["tag"] == "bandwidth"
    (seen,) = (check for check in results["checks"] if check["check"] == "interface-bytes")
    assert seen["severity"] in ("valid", "degraded"), seen


def test_ranks_on_one_node_are_measured(cluster: Cluster, runner: Runner) -> None:
    measure(cluster, runner, "together")


@pytest.mark.two_nodes
def test_separate_ranks_are_measured_between_two_nodes(cluster: Cluster, runner: Runner) -> None:
    measure(cluster, runner, "apart")
    text = json.dumps(results_of(runner))
    assert all(node in text for node in cluster.nodes())


@pytest.mark.two_nodes
def test_first_rank_is_on_the_first_named_node(cluster: Cluster, runner: Runner) -> None:
    first, second = sorted(cluster.nodes(), reverse=True)
    measure(cluster, runner, [first, second])
    assert f"{first} to {second}" in json.dumps(results_of(runner))
