"""Shapes of an experiment at the same time: a stack for each on a real cluster."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.four_servers import FAST, assert_two_were_measured, four_servers
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster


def side_by_side(benchmark: dict[str, Any]) -> None:
    """The same four servers, two of them at a time, and the fast one first."""
    four_servers(benchmark)
    benchmark["experiment"] |= {"parallel": 2, "priority": [{"deployment.target.args": FAST}]}
    benchmark["deployment"]["ttl"] = "30m"


def test_parallel_shapes_have_separate_stacks(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(side_by_side)
    ended = runner.run("--json")
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert [each["stack"] for each in found["stacks"]] == [
        f"{runner.name}-{n}" for n in (1, 2, 3, 4)
    ]
    for number in (1, 2, 3, 4):
        assert cluster.left_of(f"{runner.name}-{number}") == []
    assert_two_were_measured(runner, found["results"])


def test_ctrl_c_stops_all_stacks_and_keeps_results(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(side_by_side)
    runner.change(lambda benchmark: benchmark["load"].update(duration="180s"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        for number in (4, 1):
            command.wait_for(f"trial {number} of 8  profiling: ")
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.errors
    found = json.loads(ended.out)
    trials = found["results"]["trials"]
    assert [each["number"] for each in trials] == [1, 4]
    assert all(each["values"]["request_count_avg"] > 0 for each in trials)
    for number in (1, 2, 3, 4):
        assert cluster.left_of(f"{runner.name}-{number}") == []
    (folder,) = runner.artifacts.glob("*/")
    assert runner.folder / found["artifacts"] == folder
    assert len(list((folder / "trials").iterdir())) == 2
    assert json.loads((folder / "experiment.json").read_bytes()) == found["results"]
