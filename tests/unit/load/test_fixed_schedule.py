"""The schedule of a replay: the rows' own times with an offset and a speed."""

import numpy as np
import pytest

from aiperf_svc.config.load import Load
from aiperf_svc.core.load.fixed_schedule import FixedSchedule, due_times
from aiperf_svc.domain.errors import DatasetError

MS = 10**6


def schedule(*due_ms: int) -> FixedSchedule:
    return FixedSchedule(np.array(due_ms, dtype=np.int64) * MS)


def test_times_are_returned_in_order_and_once() -> None:
    times = schedule(0, 10, 10, 20, 30)
    assert times.take(before_ns=11 * MS).tolist() == [0, 10 * MS, 10 * MS]
    assert times.take(before_ns=11 * MS).tolist() == []
    assert times.take(before_ns=99 * MS, at_most=1).tolist() == [20 * MS]
    assert times.take(before_ns=2**62).tolist() == [30 * MS]


def test_take_returns_times_strictly_before() -> None:
    assert schedule(5).take(before_ns=5 * MS).tolist() == []


@pytest.mark.parametrize(
    ("credits", "before_ms", "count", "rate"),
    [
        (None, None, 5, 10.0),
        (3, None, 3, 10.0),
        (None, 250, 3, 12.0),
        (2, 250, 2, 8.0),
        (1, None, 1, 0.0),
        (None, 0, 0, 0.0),
    ],
)
def test_planned_rate_covers_planned_credits_only(
    credits: int | None, before_ms: int | None, count: int, rate: float
) -> None:
    before_ns = None if before_ms is None else before_ms * MS
    planned = schedule(0, 100, 200, 300, 400).planned(credits=credits, before_ns=before_ns)
    assert planned == (count, rate)


def test_due_times_over_days_have_microsecond_accuracy() -> None:
    times_s = np.array([5.0, 86_400.000_001, 864_000.5])
    due_ns = due_times(times_s, Load(fixed_schedule=True))
    assert np.abs(due_ns - np.array([0, 86_395_000_001_000, 863_995_500_000_000])).max() < 1_000


@pytest.mark.parametrize(("last_s", "speedup"), [(1e12, 1.0), (2e9, 0.25)])
def test_times_that_no_clock_reaches_are_refused(last_s: float, speedup: float) -> None:
    load = Load(fixed_schedule=True, replay_speedup=speedup)
    with pytest.raises(DatasetError, match=r"is due .* s after the start, which is over 4e\+09 s"):
        due_times(np.array([0.0, last_s]), load)
