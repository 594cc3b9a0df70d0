"""Verdicts of whole runs: sound ones are valid, and spoiled ones are not."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.core.verdict.chunk_times import gap_bounds, single_reads
from aiperf_svc.core.verdict.stream_checks import GAP_SHIFT
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.messages.reports import ClockEstimate
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run
from tests.support.fake_run import MS, START_NS, results


def test_failed_run_ends_with_its_last_request() -> None:
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + 60_000 * MS)
    rows = fake_run.request(start_ms=0, ttft_ms=2_000, tokens=1)
    found = results(rows, profiling=times, failure="the timing manager was lost")
    assert found.scalars["benchmark_duration"] == 2.0
    assert found.verdict.label == "invalid: run-failed"
    assert "the timing manager was lost" in found.verdict.reasons[0].text


def test_failed_connections_are_not_the_clients_fault() -> None:
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


def test_requests_that_never_passed_the_cap_count() -> None:
    rows = np.concatenate(
        [fake_run.request(start_ms=10 * i, ttft_ms=5, tokens=1) for i in range(60)]
    )
    (worker,) = fake_run.accounts_of(rows, unsent=40)
    account = replace(worker.account, counts=replace(worker.account.counts, capped=40))
    config = fake_run.config(request_rate=100, requests=100, concurrency=4)
    found = results(rows, config=config, workers=(replace(worker, account=account),))
    assert found.verdict.label == "invalid: load-capped"
    checks = {check.check: check for check in found.verdict.reasons}
    assert checks["capped"].text.startswith("40 requests waited")
    assert checks["unsent"].remedy == "raise load.concurrency, or lower the rate"


def test_streams_in_one_read_are_counted() -> None:
    rows = np.concatenate(
        [
            *(fake_run.request(gap_ms=0, tokens=5) for _ in range(3)),
            fake_run.request(gap_ms=5, tokens=5),
            fake_run.request(gap_ms=0, tokens=1),
            fake_run.request(gap_ms=0, tokens=1, output_tokens=1_001, hidden_tokens=1_000),
            fake_run.request(gap_ms=0, tokens=5, flags=0),
        ]
    )
    found = single_reads(PhaseRows(fake_run.columns_of(rows)))
    assert (found.streams, found.in_one_read, found.share) == (4, 3, 0.75)


def test_second_token_shares_the_uncertainty_of_the_first() -> None:
    rows = np.concatenate(
        [fake_run.request(gap_ms=4, ttft_uncertainty_ns=3 * MS) for _ in range(200)]
    )
    bounds = gap_bounds(PhaseRows(fake_run.columns_of(rows)), None)
    assert [(b.stat, b.lowest_ms, b.measured_ms, b.highest_ms) for b in bounds] == [
        ("p50", 4.0, 4.0, 7.0),
        ("p99", 4.0, 4.0, 7.0),
    ]


@pytest.mark.parametrize("held_ms", [0.5, 30.0])
def test_true_times_between_chunks_are_within_the_bounds(held_ms: float) -> None:
    # Chunks arrive 10 ms apart. At every twentieth, the client polls `held_ms` late.
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
    phase = PhaseRows(fake_run.columns_of(rows))
    bounds = [b for b in gap_bounds(phase, measured) if b.metric == "inter_chunk_latency"]
    assert measured.zeros > 0
    assert [b.stat for b in bounds] == ["p50", "p90"]
    for bound, q in zip(bounds, (0.50, 0.90), strict=True):
        true_ms = truth.percentile(q) / MS
        error = measured.relative_error * true_ms
        assert bound.lowest_ms - error <= true_ms <= bound.highest_ms + error
    assert (max(b.uncertain_share for b in bounds) > GAP_SHIFT) == (held_ms > 1)


def test_timing_managers_clock_step_counts_as_workers() -> None:
    rows = np.concatenate([fake_run.request(start_ms=i, ttft_ms=10, tokens=1) for i in range(99)])
    worker = fake_run.accounts_of(rows)[0]
    seen = tuple(ClockEstimate(at_wall_ns=START_NS + i, steps_ns=i * 50 * MS) for i in range(2))
    found = results(rows, workers=(type(worker)(rank=0, account=worker.account, clocks=seen),))
    checks = {check.check: check for check in found.verdict.checks}
    assert not checks["clock_jumps"].ok


def test_nothing_sent_is_invalid_without_error() -> None:
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


def test_first_tokens_at_once_are_too_fast() -> None:
    rows = fake_run.closed_loop(ttft_ms=0.3, client_lag_ms=0.2)
    verdict = results(rows).verdict
    assert verdict.label == "invalid: client-bound"
    (lag,) = (each for each in verdict.reasons if each.check == "schedule_lag")
    assert "too fast for this check" in lag.remedy


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


def test_uncertainty_counts_where_it_moves_the_percentile() -> None:
    rows = fake_run.closed_loop()
    _reads_merged_by_a_paused_worker(rows)
    # Fast requests may be far off without moving p99; the slowest may not. The time to the second
    # token has the same uncertainty in either case.
    assert [r.check for r in results(rows).verdict.reasons] == ["chunk_times"]
    ttft = rows["first_token_wall_ns"] - rows["start_wall_ns"]
    rows["ttft_uncertainty_ns"] = np.where(ttft > np.quantile(ttft, 0.98), 25 * MS, 0)
    assert "stamp_uncertainty" in [r.check for r in results(rows).verdict.reasons]


def test_tokens_in_one_segment_count_as_uncertain() -> None:
    rows = fake_run.closed_loop()
    rows["ttft_uncertainty_ns"] = MS // 2
    assert results(rows).verdict.label == "valid"
    assert results(rows).metrics["stamp_uncertainty"].stat("max") == 0.5
    rows["ttft_uncertainty_ns"] = rows["first_token_wall_ns"] - rows["start_wall_ns"]
    assert results(rows).verdict.label == "invalid: client-bound"
