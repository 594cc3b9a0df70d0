"""The outcome of a run follows from what is known at its end."""

from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.domain.errors import EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.outcome import STOPPED, RunEnd, RunOutcome, outcome_of
from tests.support.fake_results import experiment, inference_result, trial

RESULTS = inference_result()
TRIALS = experiment([trial()])


def status(state: str = "done", **given: Any) -> Any:
    return SimpleNamespace(
        **{"state": state, "reason": "", "exit_code": None, "artifact_error": "", "uploaded_to": ""}
        | given
    )


def outcome(**given: Any) -> RunOutcome:
    return outcome_of(RunEnd(run_id="r", **given))


def judged(**given: Any) -> tuple[str, str, ExitCode]:
    found = outcome(**given)
    return found.state, found.reason, found.exit_code


def test_a_run_that_has_ended_has_the_state_and_the_reason_that_it_says() -> None:
    assert judged(status=status(), results=RESULTS) == ("done", "", ExitCode.OK)
    failed = status("failed", reason="no records", exit_code=ExitCode.LEAKED)
    assert judged(status=failed, results=RESULTS) == ("failed", "no records", ExitCode.LEAKED)
    failed.exit_code = None
    assert judged(status=failed)[2] is ExitCode.BENCHMARK_FAILED


def test_an_error_of_the_runner_counts_more_than_what_the_run_says() -> None:
    error = EnvironmentProblem("no room")
    assert judged(status=status(), error=error) == ("failed", "no room", error.exit_code)
    unfinished = judged(status=status("profiling"))
    assert unfinished == ("failed", STOPPED, ExitCode.BENCHMARK_FAILED)


def test_known_state_and_reason_are_taken() -> None:
    known = ("cancelled", "nothing was created", ExitCode.BENCHMARK_FAILED)
    assert judged(known=known, status=status()) == (*known[:2], ExitCode.INTERRUPTED)


def test_an_error_of_another_library_is_unexpected() -> None:
    found = outcome(error=ValueError("a mistake"))
    assert (found.reason, found.exit_code) == ("unexpected ValueError: a mistake", ExitCode.ERROR)
    left = outcome(error=LeakError("still there: process 7"))
    assert (left.left, left.exit_code) == (("still there: process 7",), ExitCode.LEAKED)


@pytest.mark.parametrize(("has_all", "state"), [(True, "done"), (False, "failed")])
def test_an_experiment_is_done_when_each_trial_has_an_outcome(has_all: bool, state: str) -> None:
    error = EnvironmentProblem("the second shape has no room")
    found = outcome(
        status=status("profiling"),
        results=TRIALS,
        error=error,
        is_whole=has_all,
    )
    assert (found.state, found.failure) == (state, ExitCode.BENCHMARK_FAILED)
    assert (found.results, found.reason) == (TRIALS, "the second shape has no room")


def test_an_interrupted_experiment_is_cancelled_whatever_its_trials_are() -> None:
    found = judged(was_interrupted=True, results=TRIALS, is_whole=True)
    assert found == ("cancelled", "", ExitCode.INTERRUPTED)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"is_unverified": True}, ExitCode.ERROR),
        ({"is_unverified": True, "was_interrupted": True}, ExitCode.ERROR),
        ({"is_unlisted": True}, ExitCode.UNVERIFIED),
        ({"left": ("Pod a",), "error": LeakError("1 objects")}, ExitCode.LEAKED),
    ],
)
def test_a_stack_that_may_be_there_still_is_an_error(given: Any, code: ExitCode) -> None:
    assert judged(**{"status": status(), "results": RESULTS} | given)[2] is code


def test_what_the_runner_knows_of_the_artifacts_counts_before_what_the_run_says() -> None:
    said = status(artifact_error="theirs", uploaded_to="s3://theirs")
    found = outcome(status=said)
    assert (found.artifact_error, found.uploaded_to) == ("theirs", "s3://theirs")
    found = outcome(status=said, artifact_error="ours", uploaded_to="s3://ours")
    assert (found.artifact_error, found.uploaded_to) == ("ours", "s3://ours")
