"""The launcher with scripted processes: every way in which a run can end."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.host import processes
from aiperf_svc.domain.errors import BenchmarkFailed, ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner import process_placement
from aiperf_svc.runner.options import OtlpTarget, RunOptions
from tests.support.running_command import wait_ended
from tests.support.small_configs import small_config
from tests.support.threaded_server import in_thread

STUB = Path(__file__).parents[1] / "support" / "stub_service.py"
Play = Callable[..., ExitCode]


@pytest.fixture
def play(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Play:
    """Return a function that runs the launcher with the stub. Only artifacts may be left."""
    temporary = Path(tempfile.mkdtemp(dir="/tmp", prefix="t"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(process_placement, "END_S", 0.2)
    # Long enough for a killed process to end on a busy machine.
    monkeypatch.setattr(process_placement, "KILL_S", 3.0)

    def run(name: str, *, command: tuple[str, ...] = (), **options: Any) -> ExitCode:
        monkeypatch.setenv("STUB", name)
        service = command or (sys.executable, str(STUB))
        monkeypatch.setattr(process_placement, "SERVICE_COMMAND", service)
        config = small_config(
            "http://127.0.0.1:9",
            load={"concurrency": 1, "requests": 3},
            deployment={"layout": options.pop("layout", "auto")},
            artifacts={"dir": str(options.pop("artifacts", tmp_path / "artifacts"))},
        )
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return process_placement.run_local(config, RunOptions(**{"ui": "plain", **options}))
        finally:
            assert list(temporary.iterdir()) == [], "the private folder is left"
            assert before == {number: signal.getsignal(number) for number in before}
            temporary.rmdir()

    return run


def artifacts_in(folder: Path) -> Path:
    (found,) = (folder / "artifacts").iterdir()
    return found


def test_good_run_is_printed_and_leaves_only_artifacts(
    play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play("run") is ExitCode.OK
    out, err = capsys.readouterr()
    folder = artifacts_in(tmp_path)
    assert out.splitlines()[-1] == f"Artifacts: {folder}/"
    assert "Request Count" in out
    assert "profiling: 0 completed" in err
    assert [path.name for path in folder.iterdir()] == ["results"], "no log has a line"


@pytest.mark.parametrize("status", [200, 500])
def test_failed_metrics_receiver_is_only_reported(
    play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    came: list[tuple[str, str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            came.append((self.headers["api-key"], body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Receiver)) as server:
        url = f"{server}/v1/metrics"
        assert play("run", otlp=OtlpTarget(url=url, headers={"api-key": "s3cret"})) == 0
    assert {key for key, _ in came} == {"s3cret"}
    assert '"stringValue":"aiperf-svc"' in came[-1][1]
    out, err = capsys.readouterr()
    expected = f"the results were not sent to {url}: the receiver responds with status 500"
    assert (expected in err) is (status == 500)
    files = [path for path in artifacts_in(tmp_path).rglob("*") if path.is_file()]
    assert "s3cret" not in out + err + "".join(path.read_text("latin-1") for path in files)


def test_per_service_layout_starts_every_service_separately(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: set[tuple[str, ...]] = set()
    start = processes.start_process

    def noted(name: str, command: Sequence[str], **options: Any) -> processes.Process:
        started.add(tuple(command[2:]))
        return start(name, command, **options)

    monkeypatch.setattr(process_placement, "start_process", noted)
    assert play("run", layout="per-service") is ExitCode.OK
    assert started == {(service.value,) for service in Service}


def test_json_is_the_only_output(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    play("run", json=True)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["exit_code"], found["state"]) == (0, "done")
    assert found["results"]["request_count"]["avg"] == 3
    assert "Request Count" in err


def test_progress_is_not_shown_without_a_display(
    play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    play("run", ui="none", json=True)
    assert "profiling" not in capsys.readouterr().err


def test_failed_run_has_a_reason(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("failed run") is ExitCode.BENCHMARK_FAILED
    assert "Failed: the target is not there" in capsys.readouterr().out


def test_process_that_cannot_start_ends_the_run(play: Play) -> None:
    with pytest.raises(BenchmarkFailed) as failed:
        play("bad start")
    assert str(failed.value) == "worker-0 ended with code 2\n  cannot read the config"


def test_failure_names_its_run_in_json(play: Play) -> None:
    with pytest.raises(BenchmarkFailed, match="worker-0 ended with code 2") as failed:
        play("bad start", json=True)
    assert failed.value.run_id


def test_dead_control_process_ends_the_run(play: Play, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkFailed, match="control ended with code 7\n  out of luck"):
        play("control dies")
    logs = artifacts_in(tmp_path) / "logs"
    assert [path.name for path in logs.iterdir()] == ["control.stderr"]


def test_run_continues_without_a_worker(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("lost worker") is ExitCode.OK
    err = capsys.readouterr().err
    assert "worker-0 ended with code 9; the run continues without it" in err


def test_missing_command_is_named(play: Play) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot start control: .*no-such-program"):
        play("run", command=("/no-such-program",))


def test_first_interrupt_keeps_the_results(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("interrupted") is ExitCode.INTERRUPTED
    out, err = capsys.readouterr()
    assert "Stopping. Results so far are kept." in err
    assert "Request Count" in out
    assert "Stopped early: interrupted by the user" in out


def test_second_interrupt_leaves_at_once(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("left at once") is ExitCode.INTERRUPTED
    assert "stopped by the user before there were results" in capsys.readouterr().out


def test_a_process_that_ignores_signals_is_killed(play: Play) -> None:
    assert play("stubborn worker") is ExitCode.OK


def test_background_processes_are_killed(play: Play, tmp_path: Path) -> None:
    assert play("grandchild") is ExitCode.OK
    wait_ended(int((artifacts_in(tmp_path) / "left").read_text()))


def test_process_that_ends_late_is_reaped(tmp_path: Path) -> None:
    command = ("sleep", "600")
    process = processes.start_process("w", command, environ=os.environ, stderr=tmp_path / "stderr")
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert asyncio.run(processes.leftovers([process])) == []
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_unwritable_artifact_folder_prevents_the_start(play: Play, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*--artifact-dir"):
        play("run", artifacts=tmp_path / "file")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
