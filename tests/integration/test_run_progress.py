"""What is shown of a run while it goes on."""

from pathlib import Path
from time import time_ns

import numpy as np
from controller_context import controller_context

from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.events import RunStatePublished
from aiperf_svc.protocol.messages.reports import WorkerCounts
from aiperf_svc.protocol.records import METRIC_DTYPE
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.services.run_progress import RunProgress

CONFIG = {
    "endpoint": {"url": "http://127.0.0.1:1", "model": "mock"},
    "load": {"concurrency": 1, "duration": "30s"},
}


def test_the_time_of_a_load_that_starts_with_others_begins_with_the_load(tmp_path: Path) -> None:
    context = controller_context(CONFIG, tmp_path, run_id="0123456789ab")
    progress = RunProgress(context.inference, context.topology)
    elapsed = []
    for number, state, start_wall_ns in (
        (2, RunState.WARMUP, time_ns() + 3600 * 10**9),
        (3, RunState.PROFILING, time_ns() - 3600 * 10**9),
    ):
        progress.set_state(
            RunStatePublished(
                "run", "controller", 1, number=number, state=state, start_wall_ns=start_wall_ns
            )
        )
        elapsed.append(progress.status().phase_elapsed_s)
    assert elapsed[0] == 0
    assert 0 <= elapsed[1] < 3600


def test_turns_of_conversations_that_go_on_are_ended_requests(tmp_path: Path) -> None:
    context = controller_context(CONFIG, tmp_path, run_id="0123456789ab")
    progress = RunProgress(context.inference, context.topology)
    for second, turns in enumerate((100, 300), start=1):
        counts = WorkerCounts(Phase.PROFILING, completed=2, turns_completed=turns)
        progress.set_counts("worker-0", (counts,))
        progress.tick(second * 10**9)
    assert progress.status().requests_per_s == 200.0


def test_whole_responses_that_are_bad_are_shown_as_errors_while_the_load_is_on(
    tmp_path: Path,
) -> None:
    context = controller_context(CONFIG, tmp_path, run_id="0123456789ab")
    progress = RunProgress(context.inference, context.topology)
    progress.set_counts("worker-0", (WorkerCounts(Phase.PROFILING, completed=5),))
    for phase, outcomes in (
        (Phase.WARMUP, [Outcome.COMPLETED, Outcome.ERRORED]),
        (Phase.PROFILING, [Outcome.COMPLETED] * 3 + [Outcome.ERRORED] * 2),
    ):
        rows = np.zeros(len(outcomes), dtype=METRIC_DTYPE)
        rows["phase"], rows["outcome"] = phase, outcomes
        progress.add(rows)
    status = progress.status()
    assert (status.completed, status.errored) == (3, 2)
    progress.set_state(RunStatePublished("run", "controller", 1, number=2, state=RunState.WARMUP))
    status = progress.status()
    assert (status.completed, status.errored) == (1, 1)
