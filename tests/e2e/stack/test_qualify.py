"""A qualification as a stack: one stack for all stages, verdicts by node, and labels on request."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.node_pods import slow_link
from tests.support.stack.rank_runs import make_small
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config

pytestmark = [pytest.mark.cluster, pytest.mark.two_nodes]

RANKS = {"nodes": "apart", "pairs": "rounds", "count": 2, "read_only_root": True}
SPEED = {"speed": {"unit": "ops/s", "better": "higher", "pattern": r"speed: (\d+)"}}
SLOW = "test $AIPERF_RANK -eq 1 && echo speed: 50 || echo speed: 100"


def use_qualify(benchmark: Config) -> None:
    script = ["sh", "-c", SLOW]
    command = {"kind": "command", "command": script, "metrics": SPEED, "timeout": "20s"}
    benchmark["workload"] = {
        "kind": "qualify",
        "stages": [
            {"name": "one", "nodes": "alone", "workload": command},
            {"name": "two", "nodes": "pairs", "workload": command},
        ],
        "limits": [{"check": "one_speed", "min": 80}],
    }
    make_small()(benchmark)
    benchmark["deployment"].update(ttl="15m", ranks=RANKS)


RATE_MBIT = 40
LIMIT_MBIT = 100


def use_iperf(benchmark: Config) -> None:
    iperf = {"kind": "iperf", "duration": "3s", "omit": "0s"}
    script = ["sh", "-c", "echo speed: 100"]
    command = {"kind": "command", "command": script, "metrics": SPEED, "timeout": "20s"}
    benchmark["workload"] = {
        "kind": "qualify",
        "stages": [
            {"name": "one", "nodes": "alone", "workload": command},
            {"nodes": "pairs", "workload": iperf},
            {"name": "whole", "nodes": "all", "workload": command},
        ],
        "limits": [{"check": "iperf_bandwidth", "min": f"{LIMIT_MBIT}Mbit/s"}],
    }
    make_small()(benchmark)
    benchmark["deployment"].update(ttl="30m", ranks=RANKS)


def use_pytorch(benchmark: Config) -> None:
    batches = {"batch_size": 2, "iterations": 3, "warmup": 1, "timeout": "4m"}
    pytorch = {"kind": "pytorch", "model": "alexnet", **batches}
    benchmark["workload"] = {
        "kind": "qualify",
        "stages": [{"nodes": "alone", "workload": pytorch}],
        "limits": [{"check": "pytorch_samples_per_second", "min": 1e-6}],
    }
    make_small(memory="2Gi")(benchmark)
    benchmark["deployment"].update(ttl="1h", ranks=RANKS)


@pytest.fixture
def runner(make_runner: Callable[[], Runner], base_image: str) -> Runner:
    """Make a stack with two nodes, the second of which is slow."""
    runner = make_runner()
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = base_image
    runner.use("bench-qualify")
    runner.change(use_qualify)
    return runner


@pytest.fixture
def unlabelled(cluster: Cluster) -> Iterator[None]:
    yield
    for node in cluster.nodes():
        cluster.kubectl("label", "node", node, "aiperf.dev/qualified-", "aiperf.dev/qualified-at-")
        cluster.kubectl("annotate", "node", node, "aiperf.dev/qualified-reason-")


@pytest.mark.parametrize("is_slow", [False, True], ids=["whole", "slow"])
def test_slow_link_is_found_by_iperf(
    is_slow: bool,
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    rank_image: Callable[[str], str],
) -> None:
    runner = make_runner()
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = rank_image("iperf/Containerfile")
    runner.use("bench-qualify")
    runner.change(use_iperf)
    second = cluster.nodes()[-1]
    with slow_link(cluster, second, f"{RATE_MBIT}mbit") if is_slow else nullcontext():
        ended = runner.call("qualify", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code == (ExitCode.SLO_MISSED if is_slow else ExitCode.OK), ended.errors
    assert cluster.left_of(runner.name) == []
    (file,) = runner.artifacts.glob("*/qualify.json")
    found = json.loads(file.read_bytes())
    values = [each["value"] / 1e6 for each in found["pairs"]]
    assert len(values) == 2
    assert all((value < 1.1 * RATE_MBIT) == is_slow for value in values)
    verdicts = [[check["verdict"] for check in each["checks"]] for each in found["nodes"]]
    assert verdicts == [["pass", "fail" if is_slow else "pass"]] * 2
    # If the only link is slow, no node remains for the last stage.
    assert [stage["ended"] for stage in found["stages"]] == [1, 1, 0 if is_slow else 1]
    assert [each["verdict"] for each in found["all"]] == ["not-measured" if is_slow else "pass"]


def test_nodes_are_compared_by_batches_of_pytorch(
    cluster: Cluster, make_runner: Callable[[], Runner], rank_image: Callable[[str], str]
) -> None:
    runner = make_runner()
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = rank_image("pytorch/Containerfile")
    runner.use("bench-qualify")
    runner.change(use_pytorch)
    ended = runner.call("qualify", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code == ExitCode.OK, ended.errors
    assert cluster.left_of(runner.name) == []
    (file,) = runner.artifacts.glob("*/qualify.json")
    nodes = json.loads(file.read_bytes())["nodes"]
    assert {each["node"] for each in nodes} == set(cluster.nodes())
    for each in nodes:
        (check,) = each["checks"]
        assert (check["check"], check["verdict"]) == ("pytorch_samples_per_second", "pass")
        assert check["value"] > 0


@pytest.mark.usefixtures("unlabelled")
def test_slow_node_fails_and_is_labelled_on_request(cluster: Cluster, runner: Runner) -> None:
    ended = runner.call("qualify", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code == ExitCode.SLO_MISSED, ended.errors
    printed = json.loads(ended.out)
    assert (printed["left"], printed["not_checked"]) == ([], [])
    assert cluster.left_of(runner.name) == []
    (file,) = runner.artifacts.glob("*/qualify.json")
    nodes = json.loads(file.read_bytes())["nodes"]
    found = {each["node"]: each["verdict"] for each in nodes}
    assert set(found) <= set(cluster.nodes())
    # The good node has a value of its own but no good peer.
    assert sorted(found.values()) == ["fail", "not-measured"]
    reasons = {each["verdict"]: each["checks"][1]["reason"] for each in nodes}
    assert reasons["not-measured"] == "no good node was left as a partner"

    labelled = runner.call("qualify", "--label", str(file.parent))
    assert labelled.code == ExitCode.OK, labelled.errors
    for node, verdict in found.items():
        path = "jsonpath={.metadata.labels.aiperf\\.dev/qualified}"
        assert cluster.kubectl("get", "node", node, "-o", path) == verdict
