"""A run whose results a tracker did not take is printed all the same."""

from pathlib import Path

import pytest

from aiperf_svc.adapters.trackers import sending
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import ending
from aiperf_svc.runner.outcome import RunOutcome
from tests.support.fake_results import inference_result

CONFIG = Artifacts.model_validate({"mlflow": {"tracking_uri": "http://127.0.0.1:9"}})


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (EnvironmentProblem("not sent to MLflow"), ExitCode.ERROR, "not sent to MLflow"),
        (TypeError("a bug"), ExitCode.ERROR, "unexpected TypeError: a bug; `aiperf-svc track"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "stopped by the user; `aiperf-svc track"),
    ],
)
def test_whatever_a_tracker_does_the_results_are_kept(
    error: BaseException, code: ExitCode, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: object) -> list[str]:
        raise error

    monkeypatch.setattr(sending, "send", send)
    results = inference_result()
    outcome = RunOutcome(run_id="r", state="done", reason="", results=results, artifacts=Path("x"))
    sent = ending.sent(outcome, CONFIG)
    assert (sent.exit_code, sent.results) == (code, results)
    assert text in sent.artifact_error
