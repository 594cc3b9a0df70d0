"""Which trial comes next, and when an experiment is over."""

from typing import Any

import pytest

from aiperf_svc.core.experiments.machine import (
    BeginTrial,
    EndExperiment,
    ExperimentMachine,
    Finding,
    PlannedTrials,
    TrialEnded,
)
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.protocol.run_states import RunState

TRIALS = tuple(Trial(number, {"load.concurrency": number}) for number in (1, 2, 3))
DONE, FAILED, CANCELLED = RunState.DONE, RunState.FAILED, RunState.CANCELLED


def machine(**settings: Any) -> ExperimentMachine:
    return ExperimentMachine(PlannedTrials(TRIALS), **{"on_failure": "continue", **settings})


def begun(**settings: Any) -> ExperimentMachine:
    made = machine(**settings)
    made.begin()
    return made


def test_trials_follow_the_order_of_the_plan() -> None:
    m = machine()
    assert m.begin() == BeginTrial(1, TRIALS[0], 1)
    assert m.handle(TrialEnded(1, DONE, "")) == BeginTrial(2, TRIALS[1], 1)
    assert m.handle(TrialEnded(2, DONE, "")) == BeginTrial(3, TRIALS[2], 1)
    assert m.handle(TrialEnded(3, DONE, "")) == EndExperiment(DONE, "")


def test_failed_trial_does_not_end_the_others() -> None:
    m = begun()
    assert m.handle(TrialEnded(1, FAILED, "no target")) == BeginTrial(2, TRIALS[1], 1)


def test_failed_trial_ends_experiment_on_failure_stop() -> None:
    m = begun(on_failure="stop")
    ended = m.handle(TrialEnded(1, FAILED, "no target"))
    assert ended == EndExperiment(FAILED, "trial 1 failed: no target")


def test_failed_trial_is_retried_as_configured() -> None:
    m = begun(retries=2)
    assert m.handle(TrialEnded(1, FAILED, "")) == BeginTrial(2, TRIALS[0], 2)
    assert m.handle(TrialEnded(2, FAILED, "")) == BeginTrial(3, TRIALS[0], 3)
    assert m.handle(TrialEnded(3, FAILED, "")) == BeginTrial(4, TRIALS[1], 1)


SPOILED = Finding("invalid", "client-bound")


def test_invalid_trials_are_run_again_twice_in_all() -> None:
    one, other = {"load.concurrency": 1}, {"load.concurrency": 2}
    trials = (Trial(1, one, 1), Trial(2, other, 1), Trial(3, one, 2))
    m = ExperimentMachine(PlannedTrials(trials), replacements=2, on_failure="continue")
    m.begin()
    assert m.handle(TrialEnded(1, DONE, "", SPOILED)) == BeginTrial(2, trials[0], 2)
    assert m.handle(TrialEnded(2, DONE, "", Finding("valid", ""))) == BeginTrial(3, trials[1], 1)
    assert m.handle(TrialEnded(3, DONE, "", SPOILED)) == BeginTrial(4, trials[1], 2)
    assert m.handle(TrialEnded(4, DONE, "", None)) == BeginTrial(5, trials[2], 1)
    assert m.handle(TrialEnded(5, DONE, "", SPOILED)) == EndExperiment(DONE, "")


def test_failed_and_invalid_attempts_are_counted_separately() -> None:
    m = begun(retries=1, replacements=1)
    assert m.handle(TrialEnded(1, DONE, "", SPOILED)) == BeginTrial(2, TRIALS[0], 2)
    assert m.handle(TrialEnded(2, FAILED, "")) == BeginTrial(3, TRIALS[0], 3)
    assert m.handle(TrialEnded(3, FAILED, "")) == BeginTrial(4, TRIALS[1], 1)
    assert m.handle(TrialEnded(4, FAILED, "")) == BeginTrial(5, TRIALS[1], 2)


@pytest.mark.parametrize(
    "finding",
    [
        Finding("invalid", "target-failing"),
        Finding("invalid", "step-failed"),
        Finding("invalid", "ended-early"),
        Finding("invalid", "unusable-responses"),
        Finding("invalid", "load-capped"),
        Finding("degraded", ""),
        None,
    ],
)
def test_trials_invalid_by_server_are_not_repeated(finding: Finding | None) -> None:
    m = begun(replacements=2)
    assert m.handle(TrialEnded(1, DONE, "", finding)) == BeginTrial(2, TRIALS[1], 1)


def test_stopped_trial_ends_the_experiment() -> None:
    m = begun()
    assert m.handle(TrialEnded(1, CANCELLED, "enough")) == EndExperiment(CANCELLED, "enough")


@pytest.mark.parametrize("state", [DONE, FAILED])
def test_stop_between_trials_begins_no_other(state: RunState) -> None:
    m = begun(retries=1)
    m.cancel("enough")
    assert m.handle(TrialEnded(1, state, "")) == EndExperiment(CANCELLED, "enough")


def test_finished_trials_are_not_run_again() -> None:
    m = ExperimentMachine(PlannedTrials(TRIALS, finished={1, 2}), on_failure="continue")
    assert m.begin() == BeginTrial(1, TRIALS[2], 1)
    assert m.total == 3


def test_strategy_receives_the_result_of_each_trial() -> None:
    class Repeating:
        """Returns the first trial again as long as trials have a result."""

        total = 0

        def __init__(self) -> None:
            self.found: Finding | None = Finding("degraded")

        def next(self) -> Trial | None:
            return Trial(1, {"before": self.found.verdict}) if self.found else None

        def add(self, trial: Trial, finding: Finding | None) -> None:
            self.found = finding

    m = ExperimentMachine(Repeating(), on_failure="continue")
    m.begin()
    following = m.handle(TrialEnded(1, DONE, "", Finding("valid")))
    assert following == BeginTrial(2, Trial(1, {"before": "valid"}), 1)
    assert m.handle(TrialEnded(2, FAILED, "")) == EndExperiment(DONE, "")


def test_the_end_of_another_trial_is_refused() -> None:
    m = begun()
    with pytest.raises(ValueError, match="trial 7 has ended"):
        m.handle(TrialEnded(7, DONE, ""))
