"""The end of a command: the failure as JSON, and the exit code."""

import json
from pathlib import Path

import pytest

from aiperf_svc.adapters.trackers import sending
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import ending
from aiperf_svc.runner.ending import finish, post_errors
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from tests.support.fake_results import inference_result
from tests.support.small_configs import small_benchmark


def test_error_names_the_run_that_it_has_ended() -> None:
    error = EnvironmentProblem("no space left")
    config = parse_config(small_benchmark("http://127.0.0.1:1"), "")
    with pytest.raises(EnvironmentProblem), post_errors(config, "1a2b"):
        raise error
    assert error.run_id == "1a2b"


def test_tracker_error_is_printed_and_sets_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: object) -> list[str]:
        raise EnvironmentProblem("not sent to MLflow")

    monkeypatch.setattr(sending, "send", send)
    artifacts = Artifacts.model_validate({"mlflow": {"tracking_uri": "http://127.0.0.1:9"}})
    outcome = RunOutcome(
        run_id="1a2b", state="done", reason="", results=inference_result(), artifacts=tmp_path
    )
    assert finish(outcome, artifacts, RunOptions(json=True)) is ExitCode.ERROR
    assert json.loads(capsys.readouterr().out)["exit_code"] == ExitCode.ERROR


CONFIG = Artifacts.model_validate({"mlflow": {"tracking_uri": "http://127.0.0.1:9"}})


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (EnvironmentProblem("not sent to MLflow"), ExitCode.ERROR, "not sent to MLflow"),
        (TypeError("a bug"), ExitCode.ERROR, "unexpected TypeError: a bug; `aiperf-svc track"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "stopped by the user; `aiperf-svc track"),
    ],
)
def test_failing_tracker_keeps_the_results(
    error: BaseException, code: ExitCode, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: object) -> list[str]:
        raise error

    monkeypatch.setattr(sending, "send", send)
    results = inference_result()
    outcome = RunOutcome(run_id="r", state="done", reason="", results=results, artifacts=Path("x"))
    sent = ending.send_to_trackers(outcome, CONFIG)
    assert (sent.exit_code, sent.results) == (code, results)
    assert text in sent.artifact_error
