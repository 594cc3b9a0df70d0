"""The exit code describes how a run ended. The most serious problem decides."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.core.experiments.experiment_result import TrialResult
from aiperf_svc.domain.errors import EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.outcome import STOPPED, RunEnd, RunOutcome
from tests.support import fake_steps
from tests.support.fake_results import (
    as_json,
    errors,
    experiment,
    inference_result,
    objective,
    trial,
)
from tests.support.fake_results import inference_result as result


def outcome(**fields: Any) -> RunOutcome:
    values: dict[str, Any] = {"run_id": "0123456789ab", "state": "done", "reason": ""}
    values |= {"results": result(), "artifacts": Path("artifacts/x")}
    return RunOutcome(**{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ExitCode.OK),
        ({"results": result(verdict="degraded")}, ExitCode.OK),
        ({"results": result(slo=(True, True))}, ExitCode.OK),
        ({"results": result(slo=(True, False))}, ExitCode.SLO_MISSED),
        ({"results": result(verdict="invalid", slo=(False,))}, ExitCode.VERDICT_INVALID),
        ({"artifact_error": "disk full"}, ExitCode.ERROR),
        ({"results": result(requests=0)}, ExitCode.BENCHMARK_FAILED),
        ({"results": None}, ExitCode.BENCHMARK_FAILED),
        ({"state": "failed", "artifact_error": "disk full"}, ExitCode.BENCHMARK_FAILED),
        ({"state": "failed", "failure": ExitCode.BAD_CONFIG}, ExitCode.BAD_CONFIG),
        ({"state": "done", "failure": ExitCode.BAD_CONFIG}, ExitCode.OK),
        ({"left": ("Namespace n",), "was_interrupted": True}, ExitCode.LEAKED),
        ({"is_unverified": True, "was_interrupted": True}, ExitCode.ERROR),
        ({"is_unlisted": True, "was_interrupted": True}, ExitCode.UNVERIFIED),
        ({"is_unlisted": True, "is_unverified": True}, ExitCode.UNVERIFIED),
        ({"is_unlisted": True, "left": ("Pod p",)}, ExitCode.LEAKED),
        ({"is_unverified": True, "state": "failed"}, ExitCode.ERROR),
        ({"is_unverified": True, "results": result(verdict="invalid")}, ExitCode.ERROR),
        ({"state": "cancelled"}, ExitCode.INTERRUPTED),
        ({"state": "failed", "was_interrupted": True}, ExitCode.INTERRUPTED),
        ({"results": None, "was_interrupted": True}, ExitCode.INTERRUPTED),
    ],
)
def test_most_serious_problem_decides_exit_code(fields: dict[str, Any], code: ExitCode) -> None:
    assert outcome(**fields).exit_code is code


AWAY = trial(left_out="invalid: target-failing", values={"request_count_avg": 0.0})
"""A trial in which no request completed."""
UNFINISHED = trial(state="failed", left_out="failed: no target")


@pytest.mark.parametrize(
    ("trials", "code"),
    [
        ([trial(), trial()], ExitCode.OK),
        ([trial(), trial(left_out="invalid: client-bound")], ExitCode.OK),
        ([trial(left_out="invalid: client-bound")], ExitCode.VERDICT_INVALID),
        ([trial(), UNFINISHED], ExitCode.BENCHMARK_FAILED),
        ([trial(slo="held"), trial(slo="missed")], ExitCode.OK),
        ([trial(slo="missed"), trial(slo="missed")], ExitCode.SLO_MISSED),
        ([trial(slo="missed"), trial(left_out="invalid: lost")], ExitCode.SLO_MISSED),
        ([trial(left_out="invalid: x", slo="missed", cause="ended-early")], ExitCode.SLO_MISSED),
        ([trial(slo="not judged"), trial(slo="missed")], ExitCode.SLO_NOT_JUDGED),
        ([trial(slo="not judged"), trial(slo="held")], ExitCode.OK),
        ([], ExitCode.BENCHMARK_FAILED),
        ([AWAY, AWAY], ExitCode.BENCHMARK_FAILED),
        ([AWAY, trial(left_out="invalid: lost")], ExitCode.VERDICT_INVALID),
    ],
)
def test_experiment_succeeds_if_one_trial_holds(trials: list[TrialResult], code: ExitCode) -> None:
    assert outcome(results=experiment(trials)).exit_code is code


@pytest.mark.parametrize(
    ("others_judged", "word", "code"),
    [(True, "missed", ExitCode.SLO_MISSED), (False, "not judged", ExitCode.SLO_NOT_JUDGED)],
)
def test_unjudged_slo_has_its_own_exit_code(others_judged: bool, word: str, code: ExitCode) -> None:
    thin = objective(ok=False, metric="m", judged=False, reason="thin")
    other = objective(ok=False, metric="m", stat="p50", judged=others_judged, reason="thin")
    end = outcome(results=replace(result(), slo=(thin, other)))
    assert end.exit_code is code
    assert end.as_json()["reason"] == f"SLO {word}: m p99 thin; m p50 thin"


def test_reason_names_trials_with_unjudged_slo() -> None:
    end = outcome(results=experiment([trial(1, slo="missed"), trial(2, slo="not judged")]))
    expected = "SLO not judged: no trial certainly holds it, see trial 2"
    assert end.as_json()["reason"] == expected


def test_json_has_results_exit_code_and_state() -> None:
    found = msgspec.json.decode(
        msgspec.json.encode(outcome(results=result(slo=(False,))).as_json())
    )
    assert found["exit_code"] == 4
    assert found["results"] == as_json(result(slo=(False,)))
    assert (found["state"], found["artifacts"]) == ("done", "artifacts/x")


TRIALS = [trial(1), trial(2, state="failed", reason="the server is not ready")]
ERRORS = errors((2, "status 503"), (8, "connection refused"))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            fake_steps.result(
                fake_steps.record(of=fake_steps.step("first")),
                fake_steps.record(of=fake_steps.step("second"), number=2, problem="no route"),
            ),
            "step second: no route",
        ),
        (experiment(TRIALS), "trial 2: the server is not ready"),
        (result(0, errors=ERRORS), "no request completed: connection refused"),
        (result(0), "no request completed"),
        (experiment([AWAY]), "no request completed"),
        (None, "nothing was measured"),
        (result(errors=ERRORS), ""),
    ],
)
def test_failed_benchmark_of_completed_run_has_reason(found: Results | None, reason: str) -> None:
    assert outcome(results=found).as_json()["reason"] == reason


def test_reason_of_unplanned_end_is_kept() -> None:
    failed = outcome(state="failed", reason="the target is away", results=result(0))
    assert failed.as_json()["reason"] == "the target is away"


RESULTS = inference_result()


def status(state: str = "done", **fields: Any) -> Any:
    return SimpleNamespace(
        **{"state": state, "reason": "", "exit_code": None, "artifact_error": "", "uploaded_to": ""}
        | fields
    )


def ended_run(**fields: Any) -> RunOutcome:
    return RunEnd(run_id="r", **fields).outcome()


def judged(**fields: Any) -> tuple[str, str, ExitCode]:
    found = ended_run(**fields)
    return found.state, found.reason, found.exit_code


def test_ended_run_keeps_reported_state_and_reason() -> None:
    assert judged(status=status(), results=RESULTS) == ("done", "", ExitCode.OK)
    failed = status("failed", reason="no records", exit_code=ExitCode.LEAKED)
    assert judged(status=failed, results=RESULTS) == ("failed", "no records", ExitCode.LEAKED)
    failed.exit_code = None
    assert judged(status=failed)[2] is ExitCode.BENCHMARK_FAILED


def test_runner_error_overrides_reported_state() -> None:
    error = EnvironmentProblem("no room")
    assert judged(status=status(), error=error) == ("failed", "no room", error.exit_code)
    unfinished = judged(status=status("profiling"))
    assert unfinished == ("failed", STOPPED, ExitCode.BENCHMARK_FAILED)


def test_an_error_of_another_library_is_unexpected() -> None:
    found = ended_run(error=ValueError("a mistake"))
    assert (found.reason, found.exit_code) == ("unexpected ValueError: a mistake", ExitCode.ERROR)
    left = ended_run(error=LeakError("still there: process 7"))
    assert (left.left, left.exit_code) == (("still there: process 7",), ExitCode.LEAKED)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"is_unverified": True}, ExitCode.ERROR),
        ({"is_unverified": True, "was_interrupted": True}, ExitCode.ERROR),
        ({"is_unlisted": True}, ExitCode.UNVERIFIED),
        ({"left": ("Pod a",), "error": LeakError("1 objects")}, ExitCode.LEAKED),
    ],
)
def test_possibly_remaining_stack_is_an_error(fields: Any, code: ExitCode) -> None:
    assert judged(**{"status": status(), "results": RESULTS} | fields)[2] is code


def test_runner_artifact_error_overrides_reported_one() -> None:
    expected = status(artifact_error="theirs", uploaded_to="s3://theirs")
    found = ended_run(status=expected)
    assert (found.artifact_error, found.uploaded_to) == ("theirs", "s3://theirs")
    found = ended_run(status=expected, artifact_error="ours", uploaded_to="s3://ours")
    assert (found.artifact_error, found.uploaded_to) == ("ours", "s3://ours")
