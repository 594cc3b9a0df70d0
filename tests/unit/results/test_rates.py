"""Rates of a whole run: over which time, and of how many requested."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.core.results.summary import WorkerRun
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.core.verdict.health_log import Health
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Rows
from aiperf_svc.protocol.services import Service
from tests.support import fake_run
from tests.support.fake_run import MS, START_NS, results


def test_rates_are_totals_over_the_whole_load() -> None:
    rows = np.concatenate(
        [
            fake_run.request(start_ms=500, ttft_ms=100, tokens=1, input_tokens=7),
            fake_run.request(start_ms=1500, ttft_ms=500, tokens=1, input_tokens=9),
        ]
    )
    found = results(rows).scalars
    assert found["benchmark_duration"] == 2.0
    assert found["request_throughput"] == 1.0
    assert found["output_token_throughput"] == 1.0
    assert found["input_token_throughput"] == 8.0
    assert found["total_token_throughput"] == 9.0


@pytest.mark.parametrize(
    ("failed", "stop_ms", "seconds"),
    [
        # A timeout ends after the successes.
        ({"start_ms": 10, "end_ms": 4_000, "error": ErrorKind.TIMEOUT}, 0, 4),
        # A refused connection was never written to, but has an end.
        ({"start_ms": 10, "end_ms": 3_000, "error": ErrorKind.CONNECT, "start_wall_ns": 0}, 0, 3),
        # Nothing happened between the last end and the stop.
        ({"start_ms": 10, "end_ms": 20, "error": ErrorKind.STATUS}, 8_000, 8),
        # Requests in flight at the stop drain.
        ({"start_ms": 10, "end_ms": 9_000, "error": ErrorKind.STATUS}, 8_000, 9),
    ],
)
def test_rates_are_over_the_failures_time_too(
    failed: dict[str, Any], stop_ms: int, seconds: float
) -> None:
    rows = np.concatenate(
        [
            fake_run.request(start_ms=0, ttft_ms=100, tokens=1),
            fake_run.without_response(outcome=Outcome.ERRORED, **failed),
        ]
    )
    stop_ns = START_NS + stop_ms * MS if stop_ms else 0
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=stop_ns)
    config = fake_run.config(
        concurrency=2, requests=2, slo={"goodput": {"time_to_first_token": "1s"}}
    )
    found = results(rows, profiling=times, config=config).scalars
    assert found["benchmark_duration"] == seconds
    assert found["request_throughput"] == found["goodput"] == 1 / seconds


def test_load_without_responses_has_no_steady_rate() -> None:
    rows = np.concatenate([fake_run.request(start_ms=ms, ttft_ms=20) for ms in range(3)])
    assert "steady_state_request_throughput" not in results(rows).scalars


def test_steady_state_is_from_ramp_to_stop() -> None:
    rows = np.concatenate(
        [fake_run.request(start_ms=100 * i, ttft_ms=100, tokens=1) for i in range(30)]
    )
    times = PhaseTimes(start_wall_ns=START_NS, ramp_ns=1000 * MS, stop_wall_ns=START_NS + 2000 * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0)


def ten_users(stop_ms: int) -> Rows:
    """Return requests of ten users until the stop that take a second each."""
    turns = range(-(-stop_ms // 1000))
    each = [fake_run.request(start_ms=1000 * turn, ttft_ms=1000, tokens=1) for turn in turns]
    return np.concatenate([*each] * 10)


def counting(rows: Rows, unsent: int = 0, **counts: int) -> tuple[WorkerRun, ...]:
    """Return the only worker of a run with these counts."""
    (run,) = fake_run.accounts_of(rows, unsent=unsent)
    counted = replace(run.account.counts, **counts)
    return (replace(run, account=replace(run.account, counts=counted)),)


@pytest.mark.parametrize("stop_ms", [1_100, 2_500, 2_999, 3_000, 3_400])
def test_steady_rate_is_independent_of_the_windows_end(stop_ms: int) -> None:
    rows = ten_users(stop_ms)
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + stop_ms * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0, rel=0.001)


@pytest.mark.parametrize("stop_ms", [2_500, 4_100, 5_999])
def test_steady_rate_is_independent_of_cut_requests(stop_ms: int) -> None:
    # With a grace period of zero.
    rows = ten_users(stop_ms)
    is_cut = rows["end_wall_ns"] > START_NS + stop_ms * MS
    rows["outcome"][is_cut] = Outcome.CANCELLED
    rows["end_wall_ns"][is_cut] = START_NS + stop_ms * MS
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + stop_ms * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0, rel=0.001)


def test_hanging_request_does_not_end_the_steady_state() -> None:
    rows = np.concatenate(
        [fake_run.request(start_ms=100 * i, ttft_ms=100, tokens=1) for i in range(50)]
        + [fake_run.request(start_ms=0, ttft_ms=5_000, tokens=1, outcome=Outcome.CANCELLED)]
    )
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + 5_000 * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0)


def _open_loop(rate: float, seconds: float, *, late_ms: float) -> tuple[Rows, PhaseTimes]:
    """Return constant arrivals that are each `late_ms` late and sent only before the stop."""
    gap_ms = 1000 / rate
    rows = [
        fake_run.request(start_ms=i * gap_ms + late_ms, due_ms=i * gap_ms, ttft_ms=200, tokens=5)
        for i in range(int(rate * seconds))
        if i * gap_ms + late_ms < seconds * 1000
    ]
    stop_ns = START_NS + round(seconds * 1e9)
    return np.concatenate(rows), PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=stop_ns)


@pytest.mark.parametrize(
    ("late_ms", "label"), [(0.1, "valid"), (30.0, "degraded"), (400.0, "invalid: client-bound")]
)
def test_open_loop_is_judged_by_its_lateness(late_ms: float, label: str) -> None:
    rows, times = _open_loop(100, 10, late_ms=late_ms)
    config = fake_run.config(request_rate=100, duration="10s", arrival={"pattern": "constant"})
    unsent = 1000 - len(rows)
    found = results(rows, config=config, profiling=times, unsent=unsent)
    assert found.verdict.label == label
    assert found.scalars["rate_achievement"] == pytest.approx(len(rows) / 1000)


@pytest.mark.parametrize(
    ("cpu_share", "label", "checks"),
    [(0.0, "degraded", {"connecting", "censored"}), (1.0, "invalid: client-bound", {"rate"})],
)
def test_slow_connects_blame_only_a_busy_client(
    cpu_share: float, label: str, checks: set[str]
) -> None:
    rows, times = _open_loop(100, 5, late_ms=400.0)
    rows["connect_ns"] = 400 * MS
    rows["start_wall_ns"] -= 400 * MS
    health = Health(
        id="worker-0", service=Service.WORKER, samples=5, cpu_mean=cpu_share, busy_share=cpu_share,
        loop_lag_p50_ms=1.0, loop_lag_max_ms=2.0, throttled_share=0.0, stolen_share=0.0,
        waited_share=0.0, fd_share=0.1, rss_max_bytes=2**27,
    )  # fmt: skip
    found = results(
        rows,
        config=fake_run.config(request_rate=100, duration="5s", arrival={"pattern": "constant"}),
        profiling=times,
        workers=counting(rows, unsent=40, connecting=40),
        health=(health,),
    )
    assert found.verdict.label == label
    named = {reason.check: reason for reason in found.verdict.reasons}
    assert checks <= named.keys()
    if "connecting" in named:
        assert "40 requests" in named["connecting"].text
        assert "400 ms to open" in named["connecting"].text
        assert "more workers" not in " ".join(reason.remedy for reason in named.values())


def test_achieved_rate_is_of_the_drawn_arrivals() -> None:
    rows, times = _open_loop(74, 10, late_ms=0.1)
    config = fake_run.config(
        request_rate=100, duration="10s", arrival={"pattern": "gamma", "burstiness": 0.05}
    )
    found = results(rows, config=config, profiling=times).scalars
    assert found["rate_achievement"] == pytest.approx(1.0)
    assert found["achieved_rate"] == pytest.approx(found["request_count"] / 10) == 74


def test_achieved_rate_of_conversations_counts_requests() -> None:
    rows, times = _open_loop(30, 10, late_ms=0.1)
    rows["turn"] = np.arange(300) % 3
    found = results(
        rows,
        config=fake_run.config(request_rate=10, duration="10s", arrival={"pattern": "constant"}),
        profiling=times,
        workers=counting(rows, granted=100, completed=100),
        credits_granted=100,
    )
    assert found.scalars["requested_rate"] == 10
    assert found.scalars["achieved_rate"] == pytest.approx(30)
    assert found.verdict.label == "valid"


def test_achieved_rate_of_conversations_includes_last_turns() -> None:
    # 100 conversations start within 10 s, and their 300 requests are due within 100 s.
    rows, times = _open_loop(3, 100, late_ms=0.1)
    rows["turn"] = np.arange(300) % 3
    found = results(
        rows,
        config=fake_run.config(request_rate=10, requests=100),
        profiling=replace(times, stop_wall_ns=0),
        workers=counting(rows, granted=100, completed=100),
        credits_granted=100,
    )
    assert found.scalars["requested_rate"] == 10
    assert found.scalars["rate_achievement"] == pytest.approx(1.0, rel=0.01)
    assert found.scalars["achieved_rate"] == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize(("every", "expected"), [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_skipped_turns_are_not_achieved(every: int, expected: float) -> None:
    rows, times = _open_loop(100, 10, late_ms=0.1)
    users = {"rate": 100, "users": 10}
    turns = {"turns": {"number": {"mean": 3}}}
    config = fake_run.config(user_centric=users, duration="10s", dataset=turns)
    found = results(rows[::every], config=config, profiling=times)
    assert found.scalars["rate_achievement"] == pytest.approx(expected, rel=0.01)
    assert found.scalars["achieved_rate"] == pytest.approx(100 * expected, rel=0.01)
