"""Clients that disconnect are counted in the results and change no latency."""

import numpy as np
import pytest

from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import Flag, Rows
from tests.support import fake_run
from tests.support.fake_run import MS

DELAY_NS = 220 * MS


def results(rows: Rows, **slo: object) -> Summary:
    config = fake_run.config(concurrency=20, requests=2_000, slo=slo)
    return fake_run.results(rows, config=config)


def leaving(rows: Rows, share: float) -> Rows:
    """Return the same run with randomly chosen clients that disconnect after the delay."""
    rows = rows.copy()
    chosen = np.random.default_rng(3).random(len(rows)) < share
    rows["flags"][chosen] |= np.uint16(Flag.ABANDONS)
    is_left = chosen & (rows["end_wall_ns"] - rows["sent_wall_ns"] > DELAY_NS)
    rows["outcome"][is_left] = Outcome.ABANDONED
    rows["end_wall_ns"][is_left] = rows["sent_wall_ns"][is_left] + DELAY_NS
    return rows


def test_abandoned_requests_are_neither_successes_nor_errors() -> None:
    rows = leaving(fake_run.closed_loop(), 0.4)
    left = int(np.count_nonzero(rows["outcome"] == Outcome.ABANDONED))
    found = results(rows)
    assert found.accounts.abandoned == found.scalars["abandoned_request_count"] == left > 300
    assert found.scalars["request_count"] == 2_000 - left
    assert found.scalars["error_request_count"] == found.scalars["cancelled_request_count"] == 0
    assert found.accounts.issued == found.accounts.completed + left
    assert found.accounts.violations == ()
    checks = {check.check: check.severity for check in found.verdict.checks}
    assert checks["errors"] is checks["censored"] is checks["accounts"] is Severity.VALID


def test_latencies_are_unbiased_by_leaving_clients() -> None:
    whole = fake_run.closed_loop(requests=20_000)
    some = leaving(whole, 0.5)
    waiting = whole[(some["flags"] & Flag.ABANDONS) == 0]
    all_of_them, found = results(whole), results(some)
    for tag in ("request_latency", "intended_request_latency", "time_to_first_token"):
        metric, expected = found.metrics[tag], all_of_them.metrics[tag]
        assert metric.distribution.count == len(waiting)
        assert metric.distribution.censored == 0
        for stat in ("avg", "p50", "p90"):
            assert metric.stat(stat) == pytest.approx(expected.stat(stat), rel=0.03)
    # Including the clients that leave would count the fast ones twice as much as the slow ones.
    done = some[some["outcome"] == Outcome.COMPLETED]
    biased_ms = np.median(done["end_wall_ns"] - done["start_wall_ns"]) / MS
    assert biased_ms < 0.95 * (all_of_them.metrics["request_latency"].stat("p50") or 0)


def test_latencies_over_time_exclude_leaving_clients() -> None:
    whole = fake_run.closed_loop()
    some = leaving(whole, 0.5)
    found = results(some).timeline
    waiting = results(some[(some["flags"] & Flag.ABANDONS) == 0]).timeline
    assert found is not None
    assert waiting is not None
    for tag, percentiles in waiting.latencies.items():
        np.testing.assert_array_equal(found.latencies[tag], percentiles)


def test_share_of_good_requests_excludes_abandoned_ones() -> None:
    whole = fake_run.closed_loop(requests=20_000)
    some = leaving(whole, 0.5)
    waiting = (some["flags"] & Flag.ABANDONS) == 0
    # The limit is above the delay, so some clients leave before a good response.
    tiers = {"gold": {"request_latency": 1.1 * DELAY_NS / MS}}
    (expected,) = results(whole, goodput_tiers=tiers).goodput_tiers
    (of_waiting,) = results(whole[waiting], goodput_tiers=tiers).goodput_tiers
    (found,) = results(some, goodput_tiers=tiers).goodput_tiers
    assert expected.attainment is not None
    assert found.attainment == of_waiting.attainment == pytest.approx(expected.attainment, rel=0.03)
    assert 0.1 < expected.attainment < 0.9
    # Responses of the others that completed in time are good too.
    assert of_waiting.good_request_count < found.good_request_count < expected.good_request_count
