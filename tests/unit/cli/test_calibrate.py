"""The results that `calibrate` derives from its short runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.cli import main as cli
from aiperf_svc.cli.commands import calibrate
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig

Lags = dict[str, float]


@contextmanager
def no_server(config: MockServerConfig) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(url=f"http://127.0.0.1:{config.processes}")


@pytest.fixture
def lags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lags:
    """Set the p99 schedule lag in ms by rate. Closed loop reaches 1,000 requests/s."""
    found: Lags = {"250": 0.5, "500": 1.0, "750": 40.0}

    def measured(_: str, load: tuple[str, ...]) -> dict[str, Any]:
        lag = found[load[1]] if load[0] == "--request-rate" else 0.0
        return {
            "request_throughput": {"avg": 1_000.0},
            "schedule_lag": {"p99": lag},
            "aiperf_svc": {"verdict": "valid"},
        }

    monkeypatch.setattr(calibrate, "_measure", measured)
    monkeypatch.setattr(calibrate, "running", no_server)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def calibrated(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["calibrate", "--json"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_worker_rate_is_the_highest_one_on_time(
    lags: Lags, capsys: pytest.CaptureFixture[str]
) -> None:
    found = calibrated(capsys)
    assert found["worker_rate"] == 500
    assert found["worker_requests_per_s"] == found["requests_per_s"] == 1_000
    assert found["chunks_per_s"] == 100_000
    assert [step["rate"] for step in found["steps"]] == [250, 500, 750]


def test_always_late_worker_gets_the_lowest_rate(
    lags: Lags, capsys: pytest.CaptureFixture[str]
) -> None:
    lags.update(dict.fromkeys(lags, 100.0))
    assert calibrated(capsys)["worker_rate"] == 250


def test_the_table_names_every_step_and_the_file(
    lags: Lags, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["calibrate"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert "at 750/s: schedule lag p99 40.00 ms, valid" in text
    [path] = (tmp_path / "aiperf-svc").iterdir()
    assert str(path) in text


@pytest.mark.parametrize(
    ("cores", "processes", "users"), [(2.0, 0, 0), (3.0, 1, 200), (16.0, 8, 400), (64.0, 32, 1_600)]
)
def test_all_workers_meet_a_server_of_their_size(
    cores: float,
    processes: int,
    users: int,
    lags: Lags,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server with one process is slower than several workers."""
    loads: list[tuple[str, tuple[str, ...]]] = []
    measured = calibrate._measure

    def measure(url: str, load: tuple[str, ...]) -> dict[str, Any]:
        loads.append((url.rpartition(":")[2], load))
        return measured(url, load)

    monkeypatch.setattr(calibrate, "_measure", measure)
    monkeypatch.setattr(calibrate, "usable_cores", lambda: cores)
    calibrated(capsys)
    whole = [(url, load[1]) for url, load in loads if load[::2] == ("--concurrency", "--duration")]
    expected = [(str(processes), str(users))] if processes else []
    # The last run measures chunks.
    assert whole[:-1] == expected
