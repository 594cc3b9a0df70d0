"""The outcome of a stack's run follows from what its stages have left."""

from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.domain.errors import EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.stack.stack_outcome import NOTHING_MADE, STOPPED, StackEnd
from tests.support.fake_results import experiment, inference_result, trial

RESULTS = inference_result()
TRIALS = experiment([trial()])


def status(state: str = "done", **given: Any) -> Any:
    return SimpleNamespace(
        **{"state": state, "reason": "", "exit_code": None, "artifact_error": "", "uploaded_to": ""}
        | given
    )


def outcome(**given: Any) -> RunOutcome:
    return StackEnd(run_id="r", stack="s", **given).outcome()


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
    assert judged(status=status(), failure=error) == ("failed", "no room", error.exit_code)
    unfinished = judged(status=status("profiling"))
    assert unfinished == ("failed", STOPPED, ExitCode.BENCHMARK_FAILED)


def test_a_stack_of_which_nothing_was_made_is_a_run_that_was_stopped() -> None:
    assert judged(is_made=False) == ("cancelled", NOTHING_MADE, ExitCode.INTERRUPTED)
    resumed = outcome(is_made=False, trials=TRIALS, has_all_trials=True)
    assert (resumed.state, resumed.was_interrupted, resumed.results) == ("done", False, TRIALS)


@pytest.mark.parametrize(("has_all", "state"), [(True, "done"), (False, "failed")])
def test_an_experiment_is_done_when_each_trial_has_an_outcome(has_all: bool, state: str) -> None:
    error = EnvironmentProblem("the second shape has no room")
    found = outcome(
        status=status("profiling"),
        results=RESULTS,
        failure=error,
        trials=TRIALS,
        has_all_trials=has_all,
    )
    assert (found.state, found.failure) == (state, ExitCode.BENCHMARK_FAILED)
    assert (found.results, found.reason) == (TRIALS, "the second shape has no room")


def test_an_interrupted_experiment_is_cancelled_whatever_its_trials_are() -> None:
    found = judged(was_interrupted=True, trials=TRIALS, has_all_trials=True)
    assert found == ("cancelled", "", ExitCode.INTERRUPTED)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"is_verified": False}, ExitCode.ERROR),
        ({"is_verified": False, "was_interrupted": True}, ExitCode.ERROR),
        ({"is_verified": False, "is_kept": True}, ExitCode.OK),
        ({"is_verified": False, "is_made": False}, ExitCode.INTERRUPTED),
        ({"left": ("Pod a",), "failure": LeakError("1 objects")}, ExitCode.LEAKED),
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


def test_programs_are_told_what_became_of_the_stack() -> None:
    found = outcome(
        status=status(), results=RESULTS, namespace="n", not_checked=("nodes",), took_s={"up": 1.5}
    )
    assert found.more == {
        "stack": "s",
        "namespace": "n",
        "kept": False,
        "left": [],
        "not_checked": ["nodes"],
        "took_s": {"up": 1.5},
    }
