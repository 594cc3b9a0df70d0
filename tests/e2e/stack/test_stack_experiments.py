"""All trials of an experiment run on pods that start once."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.four_servers import assert_two_were_measured, four_servers
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = [pytest.mark.cluster, pytest.mark.gate]


def sweep(benchmark: dict[str, Any]) -> None:
    benchmark["load"]["duration"] = "3s"
    benchmark["experiment"] = {"product": {"load.concurrency": [1, 4]}, "repetitions": 2}


def test_all_trials_run_on_the_same_pods(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(sweep)
    ended = runner.run("--json")
    assert ended.code in FINISHED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert cluster.left_of(runner.name) == []
    trials = found["results"]["trials"]
    assert [trial["parameters"]["load.concurrency"] for trial in trials] == [1, 4, 1, 4]
    assert {trial["state"] for trial in trials} == {"done"}
    (folder,) = runner.artifacts.glob("*/")
    for trial in trials:
        own = folder / "trials" / trial["folder"]
        summary = json.loads((own / "profile_export_aiperf.json").read_text())
        accounts = summary["aiperf_svc"]["accounts"]
        assert accounts["violations"] == []
        assert accounts["completed"] == trial["values"]["request_count_avg"] > 0
        lines = (own / "profile_export.jsonl").read_text().splitlines()
        assert len(lines) == accounts["completed"]
    assert (folder / "profile_runs" / "run_0004" / "report.html").exists()
    assert (folder / "experiment.parquet").exists()


def test_failing_shape_costs_only_its_own_trials(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(four_servers)
    ended = runner.run("--json")
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert cluster.left_of(runner.name) == []
    folder = assert_two_were_measured(runner, found["results"])
    assert {path.name for path in (folder / "shapes").iterdir()} == {"1", "2", "4"}
    assert (folder / "report.html").exists()
