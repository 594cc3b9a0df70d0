"""Concurrency is the exact integral of the requests in flight."""

import numpy as np
import pytest

from aiperf_svc.core.stats import concurrency
from aiperf_svc.core.stats.concurrency import held_over_time

S = 10**9


def times(*seconds: float) -> np.ndarray:
    return np.array([round(s * S) for s in seconds], dtype=np.int64)


def test_two_overlapping_requests_by_hand() -> None:
    # 1 in flight in [0, 2), 2 in [2, 4), 1 in [4, 8), 0 in [8, 10).
    found = held_over_time(times(0, 2), times(8, 4), begin_ns=0, stop_ns=10 * S)
    assert found is not None
    assert found.avg == pytest.approx(1.0)
    assert (found.min, found.max, found.p50, found.p90) == (0.0, 2.0, 1.0, 2.0)
    assert found.std == pytest.approx((0.2 * 1 + 0.2 * 1) ** 0.5)


def test_requests_are_cut_at_window_edges() -> None:
    found = held_over_time(times(-5, 3), times(2, 50), begin_ns=0, stop_ns=4 * S)
    assert found is not None
    assert found.avg == pytest.approx((2 + 1) / 4)


def test_slot_refilled_at_once_is_one_slot() -> None:
    found = held_over_time(times(0, 1, 2), times(1, 2, 3), begin_ns=0, stop_ns=3 * S)
    assert found is not None
    assert (found.min, found.max, found.avg) == (1.0, 1.0, 1.0)


def test_an_empty_window_has_no_level() -> None:
    assert held_over_time(times(0), times(1), begin_ns=S, stop_ns=S) is None


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    starts = random.integers(0, 100 * S, 5_000)
    ends = starts + random.integers(0, 9 * S, 5_000)
    whole = held_over_time(starts.copy(), ends.copy(), begin_ns=5 * S, stop_ns=90 * S)
    monkeypatch.setattr(concurrency, "_PIECE", 97)
    pieces = held_over_time(starts.copy(), ends.copy(), begin_ns=5 * S, stop_ns=90 * S)
    assert whole is not None
    assert pieces is not None
    inside = np.minimum(ends, 90 * S) - np.maximum(starts, 5 * S)
    assert whole.avg == pytest.approx(np.maximum(inside, 0).sum() / (85 * S))
    assert pieces.avg == pytest.approx(whole.avg)
    assert (pieces.p50, pieces.p99, pieces.max) == (whole.p50, whole.p99, whole.max)
