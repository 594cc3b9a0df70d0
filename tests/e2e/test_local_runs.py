"""Runs real processes as a user does and compares the results with the server's own record."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiperf_svc.core.control.roster import CONTROL_SILENCE_NS
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.forked_commands import finished
from tests.support.running_command import (
    FINISHED,
    Command,
    artifacts,
    assert_only_the_user_reads,
    wait_gone,
)


@pytest.fixture
def mock(request: pytest.FixtureRequest) -> Iterator[RunningMockServer]:
    settings = {"ttft": "10ms", "itl": "2ms", "tokens": 5} | getattr(request, "param", {})
    with running(MockServerConfig(truth=True, **settings)) as server:
        yield server


def server(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mock", [settings], indirect=True)


def test_run_leaves_its_artifacts_and_nothing_else(mock: RunningMockServer, tmp_path: Path) -> None:
    flags = ("--concurrency", "5", "--request-count", "100")
    command = Command(tmp_path, mock.url, *flags, is_executed=True)
    command.wait_for_requests(mock, 10)
    assert command.note_ports() == {}, "all sockets of a local run are files"
    summary = command.finish()
    assert command.code in FINISHED, command.errors
    assert summary["results"]["request_count"]["avg"] == 100 == mock.truth()["requests"]
    command.assert_nothing_is_left()
    names = {p.name for p in artifacts(tmp_path).iterdir()}
    assert names >= {
        "config.yaml", "inputs.json", "logs", "manifest.json", "profile_export.jsonl",
        "profile_export_aiperf.csv", "profile_export_aiperf.json", "records.parquet",
        "report.html", "verdict.json",
    }  # fmt: skip
    assert not [p for p in names if p.endswith((".part", ".tmp"))]
    assert_only_the_user_reads(artifacts(tmp_path))


def test_resolved_config_runs_again_to_the_same_requests(
    mock: RunningMockServer, tmp_path: Path
) -> None:
    flags = ("--concurrency", "3", "--request-count", "30", "--random-seed", "7", "--isl", "20")
    first = Command(tmp_path, mock.url, *flags)
    first.finish()
    resolved = artifacts(tmp_path) / "config.yaml"
    inputs = (artifacts(tmp_path) / "inputs.json").read_bytes()
    again = tmp_path / "again"
    again.mkdir()
    done = finished(("run", str(resolved), "--local", "--ui", "none"), cwd=again)
    assert done.returncode in FINISHED, done.stderr
    assert (artifacts(again) / "inputs.json").read_bytes() == inputs
    assert mock.truth()["requests"] == 60


@pytest.mark.alone
@server(ttft="20ms", itl="5ms", tokens=50)
def test_times_match_the_server_within_a_millisecond(
    mock: RunningMockServer, tmp_path: Path
) -> None:
    flags = ("--request-rate", "200", "--arrival-pattern", "constant", "--request-count", "200")
    command = Command(tmp_path, mock.url, *flags)
    results = command.finish()["results"]
    rows = mock.truth(rows=True)["rows"]
    assert len(rows) == 200
    ttft = np.mean([r["chunk_wall_ns"][0] - r["arrival_wall_ns"] for r in rows]) / 1e6
    itl = np.mean([np.mean(np.diff(r["chunk_wall_ns"][:50])) for r in rows]) / 1e6
    assert results["time_to_first_token"]["avg"] == pytest.approx(ttft, abs=1.0)
    assert results["inter_token_latency"]["avg"] == pytest.approx(itl, abs=1.0)


@pytest.mark.parametrize(
    "flags", [("--layout", "per-service"), ("--workers-min", "3", "--record-processors", "2")]
)
def test_every_layout_has_the_same_results(
    mock: RunningMockServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    command = Command(tmp_path, mock.url, "--concurrency", "60", "--request-count", "300", *flags)
    results = command.finish()["results"]
    assert command.code in FINISHED, command.errors
    assert results["aiperf_svc"]["accounts"]["completed"] == 300 == mock.truth()["requests"]
    command.assert_nothing_is_left()


def test_tcp_with_curve_has_the_same_results(mock: RunningMockServer, tmp_path: Path) -> None:
    config = tmp_path / "secure.yaml"
    config.write_text(
        json.dumps(
            {
                "endpoint": {"url": mock.url, "model": "mock", "streaming": True},
                "load": {"concurrency": 10, "requests": 100},
                "deployment": {"transport": {"kind": "tcp", "curve": True}},
                "artifacts": {"dir": str(tmp_path / "out")},
            }
        )
    )
    done = finished(("run", str(config), "--local", "--json"), cwd=tmp_path)
    assert done.returncode in FINISHED, done.stderr
    assert json.loads(done.stdout)["results"]["request_count"]["avg"] == 100


@server(ttft="200ms", tokens=2)
def test_killed_worker_is_accounted_and_not_valid(mock: RunningMockServer, tmp_path: Path) -> None:
    flags = ("--concurrency", "20", "--duration", "7", "--workers-min", "2", "--grace-period", "1")
    command = Command(tmp_path, mock.url, *flags)
    command.wait_for_requests(mock, 60)
    os.kill(command.service("worker-1"), signal.SIGKILL)
    results = command.finish()["results"]
    ours = results["aiperf_svc"]
    assert ours["verdict"] != "valid"
    assert ours["accounts"]["lost"] > 0
    assert ours["accounts"]["violations"] == []
    assert "worker-1" in ours["lost_services"]
    command.assert_nothing_is_left()


@server(ttft="200ms", tokens=2)
def test_killed_record_processor_costs_no_record(mock: RunningMockServer, tmp_path: Path) -> None:
    flags = ("--concurrency", "20", "--duration", "7", "--grace-period", "1")
    pools = ("--workers-min", "2", "--record-processors", "2")
    # At a low priority, the other processor could be silent for as long as a lost one.
    command = Command(tmp_path, mock.url, *flags, *pools, preparation=("keep_priority",))
    command.wait_for_requests(mock, 60)
    os.kill(command.service("record-processor-1"), signal.SIGKILL)
    results = command.finish()["results"]
    ours = results["aiperf_svc"]
    accounts = ours["accounts"]
    assert accounts["requests_sent"] == mock.truth()["requests"]
    assert accounts["records"] + accounts["records_lost"] == accounts["requests_sent"]
    assert accounts["violations"] == []
    assert ours["verdict"] != "valid"
    assert ours["lost_services"] == ["record-processor-1"]
    log = (artifacts(tmp_path) / "logs" / "worker-manager.log").read_text()
    (seen,) = [line for line in map(json.loads, log.splitlines()) if "is lost" in line["message"]]
    # Measured on the manager's clock, which excludes delays of a busy machine. The manager waits
    # longer while it does not hear the other processor either.
    silence = re.fullmatch(r"record-processor-1 is lost: no heartbeat for (\S+) s", seen["message"])
    assert silence is not None
    assert float(silence[1]) < CONTROL_SILENCE_NS / 1e9 + 1
    # Each request counts once, although the dead processor's batches were sent again.
    lines = (artifacts(tmp_path) / "profile_export.jsonl").read_text().splitlines()
    requests = [json.loads(line)["metadata"]["x_request_id"] for line in lines]
    assert len(requests) == len(set(requests)) == accounts["records"]
    assert "Traceback" not in command.errors
    command.assert_nothing_is_left()


def test_ctrl_c_once_stops_keeps_and_reports(mock: RunningMockServer, tmp_path: Path) -> None:
    command = Command(tmp_path, mock.url, "--concurrency", "5", "--request-count", "1000000")
    command.wait_for_requests(mock, 50)
    command.process.send_signal(signal.SIGINT)
    printed = command.finish()
    results = printed["results"]
    assert printed["exit_code"] == command.code == ExitCode.INTERRUPTED
    assert printed["reason"]
    assert results["was_cancelled"] is True
    assert results["request_count"]["avg"] >= 45
    command.assert_nothing_is_left()


@server(ttft="30s", tokens=2)
def test_ctrl_c_twice_exits_at_once_without_leftovers(
    mock: RunningMockServer, tmp_path: Path
) -> None:
    command = Command(tmp_path, mock.url, "--concurrency", "5", "--request-count", "10")
    command.wait_for_requests(mock, 5)
    command.process.send_signal(signal.SIGINT)
    command.process.send_signal(signal.SIGTERM)
    printed = command.finish()
    assert printed["exit_code"] == command.code == ExitCode.INTERRUPTED
    assert printed["reason"]
    command.assert_nothing_is_left()


def test_services_end_with_a_killed_runner(mock: RunningMockServer, tmp_path: Path) -> None:
    command = Command(tmp_path, mock.url, "--concurrency", "5", "--request-count", "1000000")
    command.wait_for_requests(mock, 20)
    pidfds = [os.pidfd_open(pid) for pid in command.processes()]
    command.process.kill()
    command.process.communicate()
    wait_gone(*pidfds)


def test_bad_dataset_line_is_named_with_its_file(mock: RunningMockServer, tmp_path: Path) -> None:
    (tmp_path / "input.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    flags = ("--input-file", "input.jsonl", "--custom-dataset-type", "single_turn")
    command = Command(tmp_path, mock.url, "--concurrency", "1", "--request-count", "2", *flags)
    command.finish()
    assert command.code == ExitCode.BAD_CONFIG
    assert "input.jsonl:2" in command.errors
    assert mock.truth()["requests"] == 0
    command.assert_nothing_is_left()


def test_api_key_reaches_only_the_server(tmp_path: Path) -> None:
    key = "sk-very-secret-0123456789"
    with running(MockServerConfig(api_key=key, tokens=2)) as mock:
        flags = ("--concurrency", "2", "--request-count", "20", "--api-key", "env:MY_KEY")
        command = Command(tmp_path, mock.url, *flags, MY_KEY=key)
        summary = command.finish()
    assert summary["results"]["aiperf_svc"]["accounts"]["completed"] == 20, command.errors
    for path in artifacts(tmp_path).rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path
    assert key not in command.errors + json.dumps(summary)
