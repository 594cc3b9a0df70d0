"""With `--json`, a failing command prints exactly one object with the reason."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.forked_commands import finished
from tests.support.running_command import Command

SMALL = ("--concurrency", "2", "--request-count", "6")


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMockServer]:
    with running(MockServerConfig(ttft="5ms", tokens=2, truth=True)) as server:
        yield server


def failure(command: Command) -> tuple[ExitCode, str]:
    """Return the exit code and the reason of a failed command. Output of zero or several objects
    does not parse as JSON."""
    printed: dict[str, Any] = command.finish()
    assert "Traceback" not in command.errors
    assert printed["exit_code"] == command.code != ExitCode.OK, command.errors
    assert isinstance(printed["reason"], str)
    assert printed["reason"].strip() == printed["reason"] != ""
    command.assert_nothing_is_left()
    return command.code, printed["reason"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--concurrency", "many"), "'many'"),
        (("--concurency", "3"), "--concurency"),
        ((*SMALL, "--config", "none.yaml"), "none.yaml"),
        ((*SMALL, "--input-file", "none.jsonl"), "none.jsonl"),
        ((*SMALL, "--resume", "none"), "--resume"),
        ((*SMALL, "--slo", "nonsense:p50<1"), "nonsense"),
        (("--concurrency", "1,0", "--request-count", "5"), "load.concurrency"),
        (("--search", "load.concurrency=9..1"), "9"),
        ((*SMALL, "--kubernetes", "--yes"), "-u"),
    ],
)
def test_invalid_flags_have_json_with_the_reason(
    mock: RunningMockServer, tmp_path: Path, flags: tuple[str, ...], reason: str
) -> None:
    before = mock.truth()["requests"]
    code, reported = failure(Command(tmp_path, mock.url, *flags))
    assert code in (ExitCode.BAD_CONFIG, ExitCode.ERROR)
    assert reason in reported
    assert mock.truth()["requests"] == before


def test_unknown_command_has_json_with_the_reason(tmp_path: Path) -> None:
    assert failure(Command(tmp_path, None, words=("profle",)))[0] is ExitCode.BAD_CONFIG


@pytest.mark.parametrize("words", [("gc",), ("check-cluster",)])
def test_unreachable_cluster_has_json_with_the_reason(
    tmp_path: Path, nobody: str, words: tuple[str, ...]
) -> None:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": nobody}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    environ = os.environ | {"KUBECONFIG": "kubeconfig", "PULUMI_CONFIG_PASSPHRASE": "p"}
    done = finished((*words, "--json"), cwd=tmp_path, env=environ | {"HOME": str(tmp_path)})
    printed = json.loads(done.stdout)
    assert printed["exit_code"] == done.returncode == ExitCode.ERROR
    assert nobody in printed["reason"]


def test_unreachable_server_has_json_with_the_reason(tmp_path: Path, nobody: str) -> None:
    code, reason = failure(Command(tmp_path, nobody, *SMALL))
    assert code is ExitCode.BENCHMARK_FAILED
    assert f"nothing listens at {nobody}: connection refused" in reason
    assert not (tmp_path / "artifacts").exists(), "a service was started"


def test_unready_server_has_json_with_the_reason(tmp_path: Path, nobody: str) -> None:
    wait = ("--wait-for-model-timeout", "1")
    code, reason = failure(Command(tmp_path, nobody, *SMALL, *wait))
    assert code in (ExitCode.ERROR, ExitCode.BENCHMARK_FAILED)
    assert "not ready" in reason


def test_unknown_model_has_json_with_the_reason(mock: RunningMockServer, tmp_path: Path) -> None:
    flags = ("-u", mock.url, "-m", "mock-error-404", *SMALL)
    code, reason = failure(Command(tmp_path, None, *flags))
    assert code is ExitCode.BENCHMARK_FAILED
    assert "404" in reason


def test_failed_experiment_has_json_with_the_reason(tmp_path: Path, nobody: str) -> None:
    flags = ("--concurrency", "1,2", "--request-count", "4")
    code, reason = failure(Command(tmp_path, nobody, *flags))
    assert code is ExitCode.BENCHMARK_FAILED
    assert "connection refused" in reason


def test_artifact_path_as_file_has_json_with_reason(
    mock: RunningMockServer, tmp_path: Path
) -> None:
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    before = mock.truth()["requests"]
    code, reason = failure(Command(tmp_path, mock.url, *SMALL))
    assert code is ExitCode.BAD_CONFIG
    assert "artifacts" in reason
    assert mock.truth()["requests"] == before


def test_missed_slo_has_json_with_the_reason(tmp_path: Path) -> None:
    slo = ("--slo", "time_to_first_token:p50<1ms", "--concurrency", "2", "--request-count", "6")
    with running(MockServerConfig(ttft="500ms", tokens=1)) as slow:
        code, reason = failure(Command(tmp_path, slow.url, *slo))
    words = {
        ExitCode.SLO_MISSED: "SLO missed: time_to_first_token p50 ",
        ExitCode.VERDICT_INVALID: "the verdict is invalid: ",  # on a busy machine
    }
    assert reason.startswith(words[code])


def test_loss_of_the_only_worker_has_its_reason(mock: RunningMockServer, tmp_path: Path) -> None:
    flags = ("--concurrency", "5", "--duration", "10m", "--workers-max", "1")
    command = Command(tmp_path, mock.url, *flags)
    command.wait_for_requests(mock, mock.truth()["requests"] + 50)
    os.kill(command.service("worker-0"), signal.SIGKILL)
    assert failure(command)[0] in (ExitCode.VERDICT_INVALID, ExitCode.BENCHMARK_FAILED)


def test_ctrl_c_before_load_has_json_with_reason(tmp_path: Path) -> None:
    with running(MockServerConfig(ttft="30s", tokens=1, truth=True)) as mock:
        command = Command(tmp_path, mock.url, *SMALL)
        command.wait_for_requests(mock, 1)
        command.process.send_signal(signal.SIGINT)
        assert failure(command)[0] is ExitCode.INTERRUPTED
