"""A quality gate after the load, with its score and its exit code."""

import json
from pathlib import Path

import pytest

from aiperf_svc.cli.main import main
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.running_command import FINISHED, Command

FLAGS = ("--concurrency", "2", "--request-count", "20", "--quality-file", "../gate.jsonl")
RIGHT = {"prompt": "?", "grader": "regex", "expected": "."}
WRONG = {"prompt": "?", "grader": "exact", "expected": "nobody says this"}


def write_gate(folder: Path, *questions: dict[str, str]) -> Path:
    """Write the questions and return the folder of a run that uses them."""
    (folder / "gate.jsonl").write_text("".join(f"{json.dumps(q)}\n" for q in questions))
    within = folder / "run"
    within.mkdir()
    return within


def test_score_is_reported_and_questions_are_not_load(tmp_path: Path) -> None:
    folder = write_gate(tmp_path, *[RIGHT] * 3, WRONG)
    with running(MockServerConfig(truth=True, ttft="5ms", itl="1ms", tokens=8)) as server:
        command = Command(folder, server.url, *FLAGS, "--quality-repeats", "2")
        results = command.finish()["results"]
        truth = server.truth()
    assert command.code in FINISHED, command.errors
    assert results["quality_score"]["avg"] == 75.0
    assert results["request_count"]["avg"] == 20
    assert truth["completed"] == 20 + 8  # the questions are not part of the load
    quality = results["aiperf_svc"]["quality"]
    assert (quality["issued"], quality["right"], quality["concurrency"]) == (8, 6, 2)
    assert quality["self_agreement"] == 1.0
    (answers,) = folder.glob("artifacts/*/quality.jsonl")
    assert len(answers.read_text().splitlines()) == 8
    command.assert_nothing_is_left()


def test_score_below_the_minimum_has_exit_code_4(tmp_path: Path) -> None:
    folder = write_gate(tmp_path, *[RIGHT] * 10)
    with running(MockServerConfig(ttft="5ms", itl="1ms", tokens=8)) as server:
        command = Command(folder, server.url, *FLAGS, "--quality-min-score", "90")
        content = command.finish()
    # 10 of 10 answers are right, which proves at most 72%. On a busy machine the run is invalid.
    assert command.code in (ExitCode.SLO_MISSED, ExitCode.VERDICT_INVALID), command.errors
    assert not content["results"]["aiperf_svc"]["quality"]["is_met"]
    if command.code == ExitCode.SLO_MISSED:
        assert "quality: 10 of 10 correct" in content["reason"]


def test_wrong_file_is_refused_before_the_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_gate(tmp_path, RIGHT, {"prompt": "?", "grader": "exact"}))
    code = main(["profile", "-u", "127.0.0.1:9", "-m", "m", *FLAGS])
    assert code == ExitCode.BAD_CONFIG
    assert "gate.jsonl:2: `grader` exact needs `expected`" in capsys.readouterr().err
