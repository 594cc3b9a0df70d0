"""The status of an experiment in Jobs follows from its counted trials."""

import pytest

from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import row_of
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.services.base_progress import SHOWN_ROWS
from aiperf_svc.services.fan_out.progress import FanOutProgress


def row(number: int, state: str = "done") -> TrialRow:
    return row_of(TrialOutcome(Trial(number, {}, 1), state, "", None))


@pytest.fixture
def progress() -> FanOutProgress:
    return FanOutProgress(total=100, started_mono_s=50.0)


async def test_a_trial_is_counted_once(progress: FanOutProgress) -> None:
    assert not progress.count([row(1), row(2)])
    assert progress.count([row(2), row(3, "failed")])
    assert progress.count([row(3, "failed")])
    shown = progress.status(60.0).experiment
    assert shown is not None
    assert (shown.ended, shown.failed, [r.number for r in shown.rows]) == (3, 1, [1, 2, 3])


async def test_the_latest_trials_are_shown(progress: FanOutProgress) -> None:
    progress.count([row(number) for number in range(1, SHOWN_ROWS + 4)])
    shown = progress.status(60.0).experiment
    assert shown is not None
    assert [r.number for r in shown.rows] == list(range(4, SHOWN_ROWS + 4))


async def test_time_left_follows_from_trials_of_this_process(progress: FanOutProgress) -> None:
    progress.count([row(number) for number in range(1, 21)])
    progress.end_earlier()
    before = progress.status(60.0).experiment
    assert before is not None
    assert before.left_s is None
    progress.count([row(number) for number in range(21, 25)])
    after = progress.status(60.0).experiment
    assert after is not None
    assert after.left_s == (100 - 24) * 10.0 / 4


async def test_finished_experiment_has_results_once_files_are_written(
    progress: FanOutProgress,
) -> None:
    progress.running[1] = "pod"
    on = progress.status(60.0)
    assert (on.state, on.workers) == ("profiling", 1)
    assert on.message == "0 of 100 trials have ended, 1 pod at work"
    progress.state = RunState.DONE
    writing = progress.status(60.0)
    assert (writing.state, writing.message, writing.results_ready) == ("processing", "", False)
    progress.is_settled = True
    assert not progress.status(60.0).results_ready
    progress.has_summary = True
    settled = progress.status(60.0)
    assert (settled.state, settled.results_ready, settled.exit_code) == ("done", True, None)
    progress.state = RunState.FAILED
    assert progress.status(60.0).exit_code is ExitCode.BENCHMARK_FAILED


async def test_status_has_the_number_of_the_latest_change(progress: FanOutProgress) -> None:
    first = progress.status(60.0).number
    progress.changes.note()
    assert progress.status(60.0).number == first + 1
