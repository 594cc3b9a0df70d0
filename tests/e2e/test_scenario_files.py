"""The scenario files of a whole run, compared with the server's own record."""

import itertools
import json
from pathlib import Path

import pytest
import yaml

from aiperf_svc.adapters.storage.experiment_folder import FOLDER, write_scenario
from aiperf_svc.config.load_config import load_config
from aiperf_svc.core.experiments.scenarios import Scenario
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.running_command import FINISHED, Command, artifacts


def test_samples_of_a_query_wait_for_each_other(tmp_path: Path) -> None:
    queries = 12
    config = MockServerConfig(ttft="uniform:10ms,60ms", itl="5ms", tokens=3, truth=True)
    with running(config) as mock:
        flags = ("--scenario", "multi-stream", "--concurrency", "8")
        command = Command(tmp_path, mock.url, *flags, "--request-count", str(8 * queries))
        command.finish()
        assert command.code in FINISHED, command.errors
        rows = sorted(mock.truth(rows=True)["rows"], key=lambda row: row["arrival_wall_ns"])
    assert len(rows) == 8 * queries
    served = [rows[at : at + 8] for at in range(0, len(rows), 8)]
    for before, after in itertools.pairwise(served):
        end = max(row["end_wall_ns"] for row in before)
        assert end <= min(row["arrival_wall_ns"] for row in after)
    (folder,) = (artifacts(tmp_path) / "trials").iterdir()
    text = (folder / FOLDER / "mlperf_log_summary.txt").read_text()
    assert "MultiStream" in text
    assert f"{queries} queries, at least 662" in text
    summary = json.loads((folder / FOLDER / "performance" / "result_summary.json").read_text())
    slowest = [
        max(row["end_wall_ns"] for row in query) - min(row["arrival_wall_ns"] for row in query)
        for query in served
    ]
    assert summary["latency"]["max"] >= max(slowest)
    assert summary["n_samples_completed"] == 8 * queries


def test_a_single_stream_run_agrees_with_the_server(tmp_path: Path) -> None:
    config = MockServerConfig(ttft="10ms", itl="2ms", tokens=5, truth=True)
    with running(config) as mock:
        flags = ("--concurrency", "1", "--request-count", "70")
        command = Command(tmp_path, mock.url, *flags)
        command.finish()
        assert command.code in FINISHED, command.errors
        rows = mock.truth(rows=True)["rows"]
    folder = artifacts(tmp_path)
    resolved = load_config(folder / "config.yaml")
    result = write_scenario(folder, Scenario.SINGLE_STREAM, resolved)
    summary = json.loads((folder / FOLDER / "performance" / "result_summary.json").read_text())
    assert (summary["n_samples_completed"], summary["n_samples_failed"]) == (len(rows), 0)
    assert {gate.name: gate.is_met for gate in result.gates} == {"duration": False, "queries": True}
    assert "INVALID" in (folder / FOLDER / "mlperf_log_summary.txt").read_text()
    # No latency is below the server's time, and the estimate is one of the slowest.
    served = sorted(row["end_wall_ns"] - row["arrival_wall_ns"] for row in rows)
    assert summary["latency"]["min"] >= served[0]
    assert summary["latency"]["early_stopping_percentiles"]["90.0"] >= served[-1]
    assert summary["tpot"]["avg"] == pytest.approx(
        (summary["latency"]["avg"] - summary["ttft"]["avg"]) / 4
    )
    assert summary["output_sequence_lengths"]["avg"] == 5
    written = yaml.safe_load((folder / FOLDER / "config.yaml").read_text())
    assert written["settings"]["runtime"]["n_samples_to_issue"] == 70
