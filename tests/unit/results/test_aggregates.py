"""A whole run to its results: who counts, on which clock, within how much memory."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import fake_run
import numpy as np
import pytest
from fake_run import MS, START_NS
from msgspec.structs import replace

from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.stats import columns as columns_module
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.core.verdict.chunk_times import gap_bounds, single_reads
from aiperf_svc.core.verdict.health_log import Health
from aiperf_svc.core.verdict.stream_checks import GAP_SHIFT
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.messages.reports import ClockEstimate
from aiperf_svc.protocol.records import Rows
from aiperf_svc.protocol.services import Service


def results(rows: Rows, **fields: Any) -> Summary:
    return summarise(fake_run.columns_of(rows), None, fake_run.context(rows, **fields))


def test_warmup_and_failures_are_in_no_plain_latency() -> None:
    rows = np.concatenate(
        [
            fake_run.request(ttft_ms=20),
            fake_run.request(ttft_ms=40),
            fake_run.request(ttft_ms=900, phase=Phase.WARMUP),
            fake_run.request(ttft_ms=800, outcome=Outcome.ERRORED, error=ErrorKind.SERVER),
            fake_run.without_response(start_ms=0, end_ms=700),
        ]
    )
    found = results(rows)
    assert found.metrics["time_to_first_token"].distribution.count == 2
    assert found.metrics["time_to_first_token"].stat("max") == 40.0
    counts = {tag: found.scalars[tag] for tag in found.scalars if tag.endswith("request_count")}
    assert counts == {
        "request_count": 2,
        "error_request_count": 1,
        "completed_request_count": 3,
        "unsent_request_count": 0,
        "cancelled_request_count": 1,
        "timed_out_request_count": 0,
        "lost_request_count": 0,
        "capped_request_count": 0,
        "retried_request_count": 0,
    }
    assert found.scalars["request_error_rate"] == pytest.approx(100 / 3)


def test_intended_latencies_count_what_was_cut_as_slower_than_all() -> None:
    completed = [fake_run.request(start_ms=10, due_ms=0, ttft_ms=t, tokens=1) for t in range(1, 16)]
    cut = [
        fake_run.without_response(start_ms=5, end_ms=505),
        fake_run.without_response(
            start_ms=5, end_ms=605, outcome=Outcome.ERRORED, error=ErrorKind.TIMEOUT
        ),
        # An error that is no timeout says nothing of how long it would have taken.
        fake_run.without_response(
            start_ms=5, end_ms=6, outcome=Outcome.ERRORED, error=ErrorKind.DISCONNECTED
        ),
    ]
    found = results(np.concatenate(completed + cut), unsent=3)
    intended = found.metrics["intended_request_latency"].distribution
    # 15 responses of 11 to 25 ms, two that were cut after 500 and 600 ms, three never sent.
    assert (intended.count, intended.censored) == (15, 5)
    assert intended.stats["p50"] == pytest.approx(20.5)
    assert intended.stats["p75"] is None
    # Places 14.25 of [0, 0, 0, 11, ..., 25, 500, 600]: between 22 and 23.
    assert intended.beyond["p75"] == pytest.approx(22.25)
    assert intended.beyond["max"] == 600.0
    assert found.metrics["request_latency"].stat("max") == 15.0
    assert found.scalars["unsent_request_count"] == 3


def test_a_request_that_was_cut_after_its_first_token_has_a_first_token_time() -> None:
    rows = np.concatenate(
        [
            fake_run.request(ttft_ms=20),
            fake_run.request(ttft_ms=50, outcome=Outcome.CANCELLED),
            fake_run.without_response(start_ms=0, end_ms=300),
        ]
    )
    found = results(rows).metrics
    first = found["intended_time_to_first_token"].distribution
    whole = found["intended_request_latency"].distribution
    assert (first.count, first.censored) == (2, 1)
    assert (whole.count, whole.censored) == (1, 2)


def test_a_run_without_streaming_has_no_first_token_not_even_a_censored_one() -> None:
    rows = np.concatenate(
        [fake_run.request(flags=0), fake_run.without_response(start_ms=0, end_ms=300, flags=0)]
    )
    found = results(rows).metrics
    assert "time_to_first_token" not in found
    assert "intended_time_to_first_token" not in found
    assert found["intended_request_latency"].distribution.censored == 1


def test_rates_are_totals_over_the_time_from_the_loads_start_to_the_last_end() -> None:
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
        # A time-out ends after the successes.
        ({"start_ms": 10, "end_ms": 4_000, "error": ErrorKind.TIMEOUT}, 0, 4),
        # A connection that was refused was never written to, and has an end all the same.
        ({"start_ms": 10, "end_ms": 3_000, "error": ErrorKind.CONNECT, "start_wall_ns": 0}, 0, 3),
        # After the last end nothing happened until the stop.
        ({"start_ms": 10, "end_ms": 20, "error": ErrorKind.STATUS}, 8_000, 8),
        # What was in flight at the stop drains.
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


def test_a_failed_run_ended_with_its_last_request_and_not_at_the_planned_stop() -> None:
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + 60_000 * MS)
    rows = fake_run.request(start_ms=0, ttft_ms=2_000, tokens=1)
    found = results(rows, profiling=times, failure="the timing manager was lost")
    assert found.scalars["benchmark_duration"] == 2.0
    assert found.verdict.label == "invalid: run-failed"
    assert "the timing manager was lost" in found.verdict.reasons[0].text


def test_what_could_not_be_connected_is_not_achieved_and_not_the_clients_fault() -> None:
    rows = np.concatenate(
        [
            *(fake_run.request(start_ms=10 * i, ttft_ms=5, tokens=1) for i in range(60)),
            *(
                fake_run.without_response(
                    start_ms=10 * i,
                    end_ms=10 * i + 1,
                    outcome=Outcome.ERRORED,
                    error=ErrorKind.CONNECT,
                    start_wall_ns=0,
                )
                for i in range(60, 100)
            ),
        ]
    )
    config = fake_run.config(request_rate=100, requests=100)
    found = results(rows, config=config)
    assert found.scalars["rate_achievement"] == pytest.approx(0.6)
    assert found.scalars["achieved_rate"] == pytest.approx(60)
    assert found.verdict.label == "invalid: target-failing"
    assert "rate" not in {reason.check for reason in found.verdict.reasons}


def test_streams_that_came_in_one_read_are_counted_among_those_of_several_tokens() -> None:
    rows = np.concatenate(
        [
            *(fake_run.request(gap_ms=0, tokens=5) for _ in range(3)),
            fake_run.request(gap_ms=5, tokens=5),
            fake_run.request(gap_ms=0, tokens=1),
            fake_run.request(gap_ms=0, tokens=5, flags=0),
        ]
    )
    found = single_reads(PhaseRows(fake_run.columns_of(rows), phase=Phase.PROFILING))
    assert (found.streams, found.in_one_read, found.share) == (4, 3, 0.75)


def test_a_second_token_is_later_by_as_much_as_the_first_one_may_have_been_earlier() -> None:
    rows = np.concatenate(
        [fake_run.request(gap_ms=4, ttft_uncertainty_ns=3 * MS) for _ in range(200)]
    )
    bounds = gap_bounds(PhaseRows(fake_run.columns_of(rows), phase=Phase.PROFILING), None)
    assert [(b.stat, b.lowest_ms, b.measured_ms, b.highest_ms) for b in bounds] == [
        ("p50", 4.0, 4.0, 7.0),
        ("p99", 4.0, 4.0, 7.0),
    ]


@pytest.mark.parametrize("held_ms", [0.5, 30.0])
def test_the_true_times_between_chunks_are_within_the_bounds(held_ms: float) -> None:
    # Chunks come 10 ms apart; the client looks `held_ms` late at every twentieth.
    true = np.random.default_rng(3).exponential(10 * MS, 20_000).astype(np.int64)
    came = np.cumsum(true)
    seen = came.copy()
    for at in range(20, len(came) - 20, 20):
        together = (came >= came[at]) & (came <= came[at] + held_ms * MS)
        seen[together] = came[together].max()
    measured, truth = Histogram(), Histogram()
    measured.add(np.diff(seen))
    truth.add(np.diff(came))
    rows = fake_run.make_rows(100, last_uncertainty_ns=round(held_ms * MS), chunks=200)
    phase = PhaseRows(fake_run.columns_of(rows), phase=Phase.PROFILING)
    bounds = [b for b in gap_bounds(phase, measured) if b.metric == "inter_chunk_latency"]
    assert measured.zeros > 0
    assert [b.stat for b in bounds] == ["p50", "p90"]
    for bound, q in zip(bounds, (0.50, 0.90), strict=True):
        at = truth.percentile(q) / MS
        error = measured.relative_error * at
        assert bound.lowest_ms - error <= at <= bound.highest_ms + error
    assert (max(b.uncertain_share for b in bounds) > GAP_SHIFT) == (held_ms > 1)


def test_a_load_that_ends_before_any_response_has_no_steady_rate() -> None:
    rows = np.concatenate([fake_run.request(start_ms=ms, ttft_ms=20) for ms in range(3)])
    assert "steady_state_request_throughput" not in results(rows).scalars


def test_steady_state_begins_after_the_ramp_and_ends_at_the_stop() -> None:
    rows = np.concatenate(
        [fake_run.request(start_ms=100 * i, ttft_ms=100, tokens=1) for i in range(30)]
    )
    times = PhaseTimes(start_wall_ns=START_NS, ramp_ns=1000 * MS, stop_wall_ns=START_NS + 2000 * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0)


@pytest.mark.parametrize("stop_ms", [1_100, 2_500, 2_999, 3_000, 3_400])
def test_a_steady_rate_does_not_depend_on_where_its_window_ends(stop_ms: int) -> None:
    # Ten users, each of whose requests takes a second.
    rows = np.concatenate(
        [
            fake_run.request(start_ms=1000 * turn, ttft_ms=1000, tokens=1)
            for turn in range(-(-stop_ms // 1000))
            for _ in range(10)
        ]
    )
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + stop_ms * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0, rel=0.001)


@pytest.mark.parametrize("stop_ms", [2_500, 4_100, 5_999])
def test_a_steady_rate_does_not_depend_on_requests_that_were_cut(stop_ms: int) -> None:
    # The same users with a grace period of zero.
    rows = np.concatenate(
        [
            fake_run.request(start_ms=1000 * turn, ttft_ms=1000, tokens=1)
            for turn in range(-(-stop_ms // 1000))
            for _ in range(10)
        ]
    )
    is_cut = rows["end_wall_ns"] > START_NS + stop_ms * MS
    rows["outcome"][is_cut] = Outcome.CANCELLED
    rows["end_wall_ns"][is_cut] = START_NS + stop_ms * MS
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + stop_ms * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0, rel=0.001)


def test_one_request_that_hangs_from_the_first_second_on_does_not_end_the_steady_state() -> None:
    rows = np.concatenate(
        [fake_run.request(start_ms=100 * i, ttft_ms=100, tokens=1) for i in range(50)]
        + [fake_run.request(start_ms=0, ttft_ms=5_000, tokens=1, outcome=Outcome.CANCELLED)]
    )
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + 5_000 * MS)
    found = results(rows, profiling=times).scalars
    assert found["steady_state_request_throughput"] == pytest.approx(10.0)


def test_workers_on_other_clocks_are_compared_on_one() -> None:
    # Worker 1's clock is 10 s ahead; both worked in the same second.
    mine = fake_run.request(start_ms=0, ttft_ms=1000, tokens=1)
    other = fake_run.request(start_ms=10_000, ttft_ms=1000, tokens=1, worker=1)
    rows = np.concatenate([mine, other])
    workers = fake_run.accounts_of(rows)
    shifted = (
        workers[0],
        type(workers[1])(
            rank=1,
            account=workers[1].account,
            clocks=(ClockEstimate(offset_ns=-10_000 * MS, uncertainty_ns=40_000),),
        ),
    )
    found = results(rows, workers=shifted)
    assert found.scalars["benchmark_duration"] == 1.0
    assert found.concurrency["avg"] == 2.0
    assert found.metrics["request_latency"].stat("max") == 1000.0


def test_a_step_of_the_timing_managers_clock_counts_as_one_of_the_workers() -> None:
    rows = np.concatenate([fake_run.request(start_ms=i, ttft_ms=10, tokens=1) for i in range(99)])
    worker = fake_run.accounts_of(rows)[0]
    seen = tuple(ClockEstimate(at_wall_ns=START_NS + i, steps_ns=i * 50 * MS) for i in range(2))
    found = results(rows, workers=(type(worker)(rank=0, account=worker.account, clocks=seen),))
    checks = {check.check: check for check in found.verdict.checks}
    assert not checks["clock_jumps"].ok


def test_goodput_and_objectives_are_in_the_results() -> None:
    rows = np.concatenate(
        [fake_run.request(start_ms=i, ttft_ms=10 * (i + 1), tokens=1) for i in range(10)]
    )
    config = fake_run.config(
        concurrency=20,
        requests=10,
        slo={
            "goodput": {"time_to_first_token": "50ms"},
            "objectives": [
                {"metric": "goodput", "min": 40},
                {"metric": "time_to_first_token", "stat": "max", "max": "99ms"},
            ],
        },
    )
    found = results(rows, config=config)
    assert found.scalars["good_request_count"] == 5
    assert found.scalars["goodput"] == pytest.approx(5 / 0.109)
    assert [objective.ok for objective in found.objectives] == [True, False]


def test_nothing_sent_at_all_gives_an_invalid_result_and_no_error() -> None:
    refused = fake_run.make_rows(
        4, outcome=Outcome.ERRORED, error=ErrorKind.CONNECT, flags=0, due_wall_ns=START_NS
    )
    for rows in (refused, refused[:0]):
        found = results(rows)
        assert not found.has_succeeded
        assert found.verdict.verdict == "invalid"
        assert found.concurrency == {}


@pytest.mark.parametrize("seed", range(10))
def test_honest_runs_are_valid(seed: int) -> None:
    rows = fake_run.closed_loop(seed=seed)
    assert results(rows).verdict.label == "valid"


@pytest.mark.parametrize("seed", range(5))
def test_starved_closed_loops_are_client_bound(seed: int) -> None:
    rows = fake_run.closed_loop(seed=seed, client_lag_ms=60)
    assert results(rows).verdict.label == "invalid: client-bound"


def _reads_merged_by_a_paused_worker(rows: Rows) -> None:
    rows["ttft_uncertainty_ns"][::40] = 25 * MS
    rows["receive_lag_ns"] = 4 * MS


def _writes_held_up_by_a_quota(rows: Rows) -> None:
    rows["sent_wall_ns"] += 9 * MS


def _clock_stepped(rows: Rows) -> None:
    rows["first_token_wall_ns"][:100] -= 500 * MS


def _uneven_workers(rows: Rows) -> None:
    late = rows["worker"] == 1
    for name in rows.dtype.names or ():
        if name.endswith("_wall_ns"):
            rows[name][late] += 8 * 10**9


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (_writes_held_up_by_a_quota, "stamp_uncertainty"),
        (_clock_stepped, "time_order"),
        (_uneven_workers, "concurrency"),
    ],
)
def test_spoiled_runs_are_not_valid(spoil: Any, check: str) -> None:
    rows = fake_run.closed_loop()
    spoil(rows)
    verdict = results(rows).verdict
    assert verdict.verdict != "valid"
    assert check in [reason.check for reason in verdict.reasons]


def test_uncertainty_counts_as_far_as_it_can_move_the_percentile() -> None:
    rows = fake_run.closed_loop()
    _reads_merged_by_a_paused_worker(rows)
    # Fast requests may be far off without moving p99; the slowest may not. The time to the second
    # token is open by as much, whichever they are.
    assert [r.check for r in results(rows).verdict.reasons] == ["chunk_times"]
    ttft = rows["first_token_wall_ns"] - rows["start_wall_ns"]
    rows["ttft_uncertainty_ns"] = np.where(ttft > np.quantile(ttft, 0.98), 25 * MS, 0)
    assert "stamp_uncertainty" in [r.check for r in results(rows).verdict.reasons]


def test_what_a_server_put_into_one_segment_is_as_uncertain_as_the_client_polls_seldom() -> None:
    rows = fake_run.closed_loop()
    rows["ttft_uncertainty_ns"] = MS // 2
    assert results(rows).verdict.label == "valid"
    assert results(rows).metrics["stamp_uncertainty"].stat("max") == 0.5
    rows["ttft_uncertainty_ns"] = rows["first_token_wall_ns"] - rows["start_wall_ns"]
    assert results(rows).verdict.label == "invalid: client-bound"


def _open_loop(rate: float, seconds: float, *, late_ms: float) -> tuple[Rows, PhaseTimes]:
    """Constant arrivals, each `late_ms` late; what is late over the stop is not sent."""
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
def test_an_open_loop_is_judged_by_how_late_it_sent(late_ms: float, label: str) -> None:
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
def test_slow_connects_are_not_the_clients_fault_unless_it_is_busy(
    cpu_share: float, label: str, checks: set[str]
) -> None:
    rows, times = _open_loop(100, 5, late_ms=400.0)
    rows["connect_ns"] = 400 * MS
    (run,) = fake_run.accounts_of(rows, unsent=40)
    counts = replace(run.account.counts, connecting=40)
    health = Health(
        id="worker-0", service=Service.WORKER, samples=5, cpu_mean=cpu_share, busy_share=cpu_share,
        loop_lag_p50_ms=1.0, loop_lag_max_ms=2.0, throttled_share=0.0, stolen_share=0.0,
        fd_share=0.1, rss_max_bytes=2**27,
    )  # fmt: skip
    found = results(
        rows,
        config=fake_run.config(request_rate=100, duration="5s", arrival={"pattern": "constant"}),
        profiling=times,
        workers=(replace(run, account=replace(run.account, counts=counts)),),
        health=(health,),
    )
    assert found.verdict.label == label
    named = {reason.check: reason for reason in found.verdict.reasons}
    assert checks <= named.keys()
    if "connecting" in named:
        assert "40 requests" in named["connecting"].text
        assert "400 ms to open" in named["connecting"].text
        assert "more workers" not in " ".join(reason.remedy for reason in named.values())


def test_the_achieved_rate_is_that_of_the_arrivals_that_were_drawn() -> None:
    rows, times = _open_loop(74, 10, late_ms=0.1)
    config = fake_run.config(
        request_rate=100, duration="10s", arrival={"pattern": "gamma", "burstiness": 0.05}
    )
    found = results(rows, config=config, profiling=times).scalars
    assert found["rate_achievement"] == pytest.approx(1.0)
    assert found["achieved_rate"] == pytest.approx(found["request_count"] / 10) == 74


def test_the_achieved_rate_of_conversations_is_that_of_their_requests() -> None:
    rows, times = _open_loop(30, 10, late_ms=0.1)
    rows["turn"] = np.arange(300) % 3
    (run,) = fake_run.accounts_of(rows)
    counts = replace(run.account.counts, granted=100, completed=100)
    found = results(
        rows,
        config=fake_run.config(request_rate=10, duration="10s", arrival={"pattern": "constant"}),
        profiling=times,
        workers=(replace(run, account=replace(run.account, counts=counts)),),
        credits_granted=100,
    )
    assert found.scalars["requested_rate"] == 10
    assert found.scalars["achieved_rate"] == pytest.approx(30)
    assert found.verdict.label == "valid"


def test_the_achieved_rate_of_conversations_counts_the_time_of_their_last_turns() -> None:
    # 100 conversations begin in 10 s, and their 300 requests are due in 100 s.
    rows, times = _open_loop(3, 100, late_ms=0.1)
    rows["turn"] = np.arange(300) % 3
    (run,) = fake_run.accounts_of(rows)
    counts = replace(run.account.counts, granted=100, completed=100)
    found = results(
        rows,
        config=fake_run.config(request_rate=10, requests=100),
        profiling=replace(times, stop_wall_ns=0),
        workers=(replace(run, account=replace(run.account, counts=counts)),),
        credits_granted=100,
    )
    assert found.scalars["requested_rate"] == 10
    assert found.scalars["rate_achievement"] == pytest.approx(1.0, rel=0.01)
    assert found.scalars["achieved_rate"] == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize(("every", "expected"), [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_turns_that_users_did_not_take_are_no_achieved_rate(every: int, expected: float) -> None:
    rows, times = _open_loop(100, 10, late_ms=0.1)
    users = {"rate": 100, "users": 10}
    turns = {"turns": {"number": {"mean": 3}}}
    config = fake_run.config(user_centric=users, duration="10s", dataset=turns)
    found = results(rows[::every], config=config, profiling=times)
    assert found.scalars["rate_achievement"] == pytest.approx(expected, rel=0.01)
    assert found.scalars["achieved_rate"] == pytest.approx(100 * expected, rel=0.01)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_memory_is_a_few_columns_whatever_the_number_of_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 400_000
    monkeypatch.setattr(columns_module, "CHUNK_ROWS", count // 16)
    few = fake_run.closed_loop(requests=20_000, concurrency=100)
    columns = fake_run.columns_of(np.tile(few, count // len(few)))
    context = fake_run.context(few)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    summarise(columns, None, context)
    _, peak = tracemalloc.get_traced_memory()
    # At most starts and ends, or three columns for the bounds, and what pieces need; all 41
    # distributions together would be 41 columns.
    column = 8 * count
    assert peak - before < 6 * column


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fake_run.closed_loop(requests=500, error_share=0.05)
    whole = results(rows)
    monkeypatch.setattr(columns_module, "CHUNK_ROWS", 37)
    pieces = results(rows)
    assert pieces.scalars == whole.scalars
    for tag, metric in whole.metrics.items():
        for stat, value in metric.distribution.stats.items():
            assert pieces.metrics[tag].stat(stat) == pytest.approx(value), (tag, stat)


def test_output_lengths_are_held_against_what_was_asked_for() -> None:
    rows = np.concatenate(
        [
            *(fake_run.request(tokens=n, requested_tokens=100) for n in (100, 95, 94, 106, 2)),
            *(fake_run.request(tokens=n, requested_tokens=10) for n in (9, 8)),
            fake_run.request(tokens=1950, requested_tokens=2000),
            fake_run.request(tokens=1949, requested_tokens=2000),
            fake_run.request(tokens=5, requested_tokens=-1),
            fake_run.request(requested_tokens=100, outcome=Outcome.ERRORED, error=ErrorKind.SERVER),
        ]
    )
    found = results(rows)
    assert found.scalars["osl_mismatch_count"] == 6
    assert found.metrics["requested_osl"].distribution.count == 9
    diff = found.metrics["osl_mismatch_diff_pct"]
    assert (diff.stat("min"), diff.stat("max")) == (-98.0, 6.0)
    (check,) = [c for c in found.verdict.checks if c.check == "output_length"]
    assert check.measured == pytest.approx(5 / 9), "one token of ten is a tokenizer's rounding"
    assert check.severity == "degraded"


def test_a_length_that_is_only_a_maximum_is_not_checked() -> None:
    rows = fake_run.request(tokens=2, requested_tokens=100)
    config = fake_run.config(concurrency=1, requests=1, endpoint={"force_output_length": False})
    found = results(rows, config=config)
    assert found.scalars["osl_mismatch_count"] == 1
    assert "output_length" not in {c.check for c in found.verdict.checks}


@pytest.mark.parametrize(
    ("columns", "severity"),
    [
        ({"output_tokens": -1}, "degraded"),
        ({"input_tokens": -1}, "degraded"),
        ({"output_tokens": -1, "finish_reason": FinishReason.NO_CONTENT}, "valid"),
        ({"output_tokens": -1, "outcome": Outcome.CANCELLED}, "valid"),
    ],
)
def test_responses_without_a_token_count_are_named_where_others_have_one(
    columns: dict[str, int], severity: str
) -> None:
    rows = np.concatenate([fake_run.request(tokens=8, input_tokens=7) for _ in range(20)])
    for name, value in columns.items():
        rows[name][::2] = value
    checks = {check.check: check for check in results(rows).verdict.checks}
    assert checks["token_counts"].severity == severity


def test_a_run_in_which_no_response_has_a_token_count_has_no_sum_of_tokens() -> None:
    rows = np.concatenate([fake_run.request(output_tokens=-1) for _ in range(20)])
    found = results(rows)
    assert not {"total_osl", "total_isl"} & found.scalars.keys()
    assert "token_counts" not in {reason.check for reason in found.verdict.reasons}


def test_finish_reasons_of_the_phase_are_counted_by_name() -> None:
    rows = np.concatenate(
        [
            *(fake_run.request(finish_reason=FinishReason.STOP) for _ in range(3)),
            fake_run.request(finish_reason=FinishReason.NO_CONTENT),
            fake_run.request(
                finish_reason=FinishReason.ABORT, outcome=Outcome.ERRORED, error=ErrorKind.ABORTED
            ),
            fake_run.request(finish_reason=FinishReason.STOP, phase=Phase.WARMUP),
            fake_run.without_response(start_ms=0, end_ms=300),
        ]
    )
    assert results(rows).finish_reasons == {"stop": 3, "no_content": 1, "abort": 1}
