"""The displayed progress of a run."""

from pathlib import Path
from time import time_ns

import numpy as np
import pytest

from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.events import RunStatePublished
from aiperf_svc.protocol.messages.records import ErrorSample
from aiperf_svc.protocol.messages.reports import PhaseReport, WorkerCounts
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag, Rows
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.services.run_progress import RunProgress
from tests.support.in_one_loop import controller_context
from tests.support.small_configs import small_benchmark

CONFIG = small_benchmark("http://127.0.0.1:1", load={"concurrency": 1, "duration": "30s"})


def test_load_time_begins_with_the_common_start(tmp_path: Path) -> None:
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


def completed(*ends_wall_ns: int, outcome: Outcome = Outcome.COMPLETED) -> Rows:
    rows = np.zeros(len(ends_wall_ns), dtype=METRIC_DTYPE)
    rows["phase"], rows["outcome"], rows["end_wall_ns"] = Phase.PROFILING, outcome, ends_wall_ns
    return rows


def loading(tmp_path: Path) -> tuple[RunProgress, int]:
    """Return a run whose load starts, and the time of its start."""
    context = controller_context(CONFIG, tmp_path, run_id="0123456789ab")
    progress = RunProgress(context.inference, context.topology)
    state = RunState.PROFILING
    progress.set_state(RunStatePublished("run", "controller", 1, number=2, state=state))
    begin_wall_ns = time_ns()
    progress.set_phases((PhaseReport(Phase.PROFILING, begin_wall_ns),))
    return progress, begin_wall_ns


def test_rate_is_right_from_the_first_seconds(tmp_path: Path) -> None:
    progress, begin = loading(tmp_path)
    rates = []
    for ms in range(25, 10_001, 25):
        now = begin + ms * 10**6
        # 40 per second, with records that arrive half a second late, and twice as many failures.
        if ms > 500:
            ended = now - 500 * 10**6
            progress.add(completed(ended), now)
            progress.add(completed(ended, ended, outcome=Outcome.ERRORED), now)
        if not ms % 500:
            progress.tick(now)
            rates.append(progress.status().requests_per_s)
    assert rates[0] == 0, "unknown so far"
    assert rates[1:] == pytest.approx([40.0] * len(rates[1:]), rel=0.1)


def test_rate_falls_to_zero_without_requests(tmp_path: Path) -> None:
    progress, begin = loading(tmp_path)
    progress.add(completed(*[begin + 10**8] * 20), begin + 2 * 10**8)
    rates = []
    for second in range(1, 8):
        progress.tick(begin + second * 10**9)
        rates.append(progress.status().requests_per_s)
    assert rates[1:3] == pytest.approx([20 / 1.4, 20 / 2.4], rel=0.1)
    assert rates[-1] == 0


def test_clock_offsets_do_not_distort_the_rate(tmp_path: Path) -> None:
    for off_s in (-3600, 3600):
        progress, begin = loading(tmp_path)
        for ms in range(100, 20_001, 100):
            now = begin + ms * 10**6
            progress.add(completed(now + off_s * 10**9), now)
        progress.tick(now)
        assert progress.status().requests_per_s == pytest.approx(10.0, rel=0.1)


def test_most_frequent_error_of_the_phase_is_shown(tmp_path: Path) -> None:
    progress, _ = loading(tmp_path)
    assert progress.status().main_error == ""
    samples = [(Phase.WARMUP, "of warmup", 9), (Phase.PROFILING, "rare", 1)]
    samples.append((Phase.PROFILING, "Connection refused", 5))
    progress.set_errors(ErrorSample(phase, 1, 0, text, n) for phase, text, n in samples)
    assert progress.status().main_error == "Connection refused"


def test_bad_responses_are_shown_as_errors_live(tmp_path: Path) -> None:
    context = controller_context(CONFIG, tmp_path, run_id="0123456789ab")
    progress = RunProgress(context.inference, context.topology)
    progress.set_counts("worker-0", (WorkerCounts(Phase.PROFILING, completed=5),))
    for phase, outcomes in (
        (Phase.WARMUP, [Outcome.COMPLETED, Outcome.ERRORED]),
        (Phase.PROFILING, [Outcome.COMPLETED] * 2 + [Outcome.ERRORED] * 2),
        (Phase.PROFILING, [Outcome.COMPLETED, Outcome.CANCELLED]),
    ):
        rows = np.zeros(len(outcomes), dtype=METRIC_DTYPE)
        rows["phase"], rows["outcome"] = phase, outcomes
        progress.add(rows, time_ns())
    status = progress.status()
    assert (status.completed, status.errored) == (3, 2)
    progress.set_state(RunStatePublished("run", "controller", 1, number=2, state=RunState.WARMUP))
    status = progress.status()
    assert (status.completed, status.errored) == (1, 1)


def test_latency_objectives_are_shown_live(tmp_path: Path) -> None:
    wanted = [
        {"metric": "time_to_first_token", "stat": "p50", "max": "20ms"},
        {"metric": "request_latency", "stat": "min", "max": "20ms"},
        {"metric": "request_latency", "stat": "avg", "min": "20ms"},
        {"metric": "inter_token_latency", "stat": "p99", "max": "20ms"},
    ]
    context = controller_context(
        {**CONFIG, "slo": {"objectives": wanted}}, tmp_path, run_id="0123456789ab"
    )
    progress = RunProgress(context.inference, context.topology)
    rows = np.zeros(3, dtype=METRIC_DTYPE)
    rows["phase"] = Phase.PROFILING
    rows["first_token_wall_ns"] = [10_000_000, 12_000_000, 90_000_000]
    rows["last_token_wall_ns"] = [30_000_000, 40_000_000, 110_000_000]
    progress.add(rows, time_ns())
    found = [(each.stat, each.value, each.is_within) for each in progress.status().objectives]
    assert found == [("p50", 12.0, True), ("min", 30.0, False), ("avg", 60.0, True)]


def test_live_latencies_exclude_clients_that_leave(tmp_path: Path) -> None:
    progress, _ = loading(tmp_path)
    rows = np.zeros(3, dtype=METRIC_DTYPE)
    rows["phase"] = Phase.PROFILING
    rows["first_token_wall_ns"] = rows["last_token_wall_ns"] = [10_000_000, 10_000_000, 90_000_000]
    rows["flags"] = [Flag.ABANDONS, Flag.ABANDONS, 0]
    progress.add(rows, time_ns())
    status = progress.status()
    assert (status.ttft_p50_ms, status.latency_p50_ms, status.completed) == (90.0, 90.0, 3)


def test_output_token_rate_covers_the_requests_so_far(tmp_path: Path) -> None:
    progress, begin = loading(tmp_path)
    for ms in range(100, 10_001, 100):
        now = begin + ms * 10**6
        rows = completed(now)
        rows["output_tokens"] = 5 if ms % 200 else 15
        progress.add(rows, now)
    assert progress.status().output_tokens_per_s == 0.0
    progress.tick(now)
    assert progress.status().output_tokens_per_s == pytest.approx(100.0, rel=0.1)
