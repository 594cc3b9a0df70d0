"""Results of a whole run: which requests count, on which clock, and within how much memory."""

import tracemalloc

import numpy as np
import pytest

from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.stats import columns as columns_module
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.messages.reports import ClockEstimate
from aiperf_svc.protocol.records import Flag, Rows
from tests.support import fake_run
from tests.support.fake_run import MS, results


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
    counts = {
        "request_count": 2,
        "error_request_count": 1,
        "completed_request_count": 3,
        "unsent_request_count": 0,
        "cancelled_request_count": 1,
        "timed_out_request_count": 0,
        "lost_request_count": 0,
        "capped_request_count": 0,
        "retried_request_count": 0,
        "connected_request_count": 0,
        "preconnected_request_count": 0,
    }
    assert {tag: found.scalars[tag] for tag in counts} == counts
    assert found.scalars["request_error_rate"] == pytest.approx(100 / 3)


def test_new_connections_are_counted_by_waiting() -> None:
    rows = np.concatenate([fake_run.request() for _ in range(6)])
    rows["flags"][1:] &= ~np.uint16(Flag.REUSED)
    rows["connect_ns"][1:3] = 2_000_000
    rows["tls_ns"][3] = 1_000_000
    found = results(rows).scalars
    assert found["connected_request_count"] == 3
    assert found["preconnected_request_count"] == 2


def test_turns_of_a_conversation_are_different_prompts() -> None:
    turns = [fake_run.request(entry=entry, turn=turn) for entry in (3, 5) for turn in (0, 1, 2)]
    once = results(np.concatenate(turns)).scalars
    assert (once["distinct_prompt_count"], once["requests_per_prompt"]) == (2, 1.0)
    assert results(np.concatenate(turns * 2)).scalars["requests_per_prompt"] == 2.0
    assert results(np.concatenate(turns[1:3])).scalars["requests_per_prompt"] == 1.0


def test_intended_latencies_count_cut_requests_as_slowest() -> None:
    completed = [fake_run.request(start_ms=10, due_ms=0, ttft_ms=t, tokens=1) for t in range(1, 16)]
    cut = [
        fake_run.without_response(start_ms=5, end_ms=505),
        fake_run.without_response(
            start_ms=5, end_ms=605, outcome=Outcome.ERRORED, error=ErrorKind.TIMEOUT
        ),
        # The time of an error other than a timeout is no bound of the latency.
        fake_run.without_response(
            start_ms=5, end_ms=6, outcome=Outcome.ERRORED, error=ErrorKind.DISCONNECTED
        ),
    ]
    found = results(np.concatenate(completed + cut), unsent=3)
    intended = found.metrics["intended_request_latency"].distribution
    # 15 responses of 11 to 25 ms, two that were cut off after 500 and 600 ms, and three never sent.
    assert (intended.count, intended.censored) == (15, 5)
    assert intended.stats["p50"] == pytest.approx(20.5)
    assert intended.stats["p75"] is None
    # Position 14.25 of [0, 0, 0, 11, ..., 25, 500, 600] is between 22 and 23.
    assert intended.beyond["p75"] == pytest.approx(22.25)
    assert intended.beyond["max"] == 600.0
    assert found.metrics["request_latency"].stat("max") == 15.0
    assert found.scalars["unsent_request_count"] == 3


def test_request_cut_after_first_token_has_its_time() -> None:
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


def test_run_without_streaming_has_no_first_token() -> None:
    rows = np.concatenate(
        [fake_run.request(flags=0), fake_run.without_response(start_ms=0, end_ms=300, flags=0)]
    )
    found = results(rows).metrics
    assert "time_to_first_token" not in found
    assert "intended_time_to_first_token" not in found
    assert found["intended_request_latency"].distribution.censored == 1


def test_workers_on_other_clocks_are_compared_on_one() -> None:
    # Worker 1's clock is 10 s ahead. Both worked in the same second.
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
    assert [objective.ok for objective in found.slo] == [True, False]


def peak_of(requests: int, few: Rows) -> int:
    """Return the peak memory in bytes that the results of a run need in addition to its columns."""
    columns = fake_run.columns_of(np.tile(few, requests // len(few)))
    context = fake_run.context(few)
    tracemalloc.start()
    try:
        summarise(columns, None, context)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "CHUNK_ROWS", 5_000)
    few = fake_run.closed_loop(requests=10_000, concurrency=100)
    # Both have the maximum number of points in the plots.
    fewer, more = 80_000, 120_000
    column = 8 * (more - fewer)
    # At most starts and ends, or three columns for the bounds. All 41 distributions at once would
    # be 41 columns.
    assert peak_of(more, few) - peak_of(fewer, few) < 4 * column


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fake_run.closed_loop(requests=500, error_share=0.05)
    whole = results(rows)
    monkeypatch.setattr(columns_module, "CHUNK_ROWS", 37)
    pieces = results(rows)
    assert pieces.scalars == whole.scalars
    for tag, metric in whole.metrics.items():
        for stat, value in metric.distribution.stats.items():
            assert pieces.metrics[tag].stat(stat) == pytest.approx(value), (tag, stat)
