"""Repeated bursts: the number and times of arrivals, which form a Poisson process."""

import numpy as np
import pytest

from aiperf_svc.core.load.arrivals import Arrivals, BurstCurve

SECOND = 10**9


def curve(usual: float = 20.0) -> BurstCurve:
    return BurstCurve(usual=usual, burst=200.0, length_s=5.0, every_s=60.0)


def due(until_s: float, *, usual: float = 20.0, pattern: str = "poisson") -> np.ndarray:
    arrivals = Arrivals(rate=curve(usual), pattern=pattern, seed=3, phase=0)  # type: ignore[arg-type]
    return arrivals.take(before_ns=round(until_s * SECOND)) / SECOND


def test_each_period_ends_with_its_burst() -> None:
    assert curve().expected(55.0) == 20 * 55
    assert curve().expected(57.5) == 20 * 55 + 200 * 2.5
    assert curve().expected(60.0) == 20 * 55 + 200 * 5
    assert curve().expected(6 * 60 + 1.0) == 6 * (20 * 55 + 200 * 5) + 20


@pytest.mark.parametrize("usual", [0.0, 20.0, 900.0])
def test_burst_times_invert_the_expected_count(usual: float) -> None:
    made = curve(usual)
    expected = np.linspace(0.01, made.expected(1_000.0), 5_000)
    times = made.times(expected)
    assert (np.diff(times) > 0).all()
    assert np.allclose([made.expected(at) for at in times.tolist()], expected)


def test_arrivals_without_usual_rate_are_within_bursts() -> None:
    times = due(36_000, usual=0.0)
    assert len(times) == pytest.approx(600 * 1_000, abs=4 * np.sqrt(600_000))
    assert (times % 60 >= 55).all()


def test_constant_arrivals_are_evenly_spaced_within_each_part() -> None:
    times = due(60, pattern="constant")
    assert len(times) == 2_100
    assert np.allclose(np.diff(times[times < 55]), 1 / 20)
    assert np.allclose(np.diff(times[times >= 55]), 1 / 200)


def test_burst_arrivals_are_poisson_at_each_rate() -> None:
    times = due(60_000)
    into = times % 60
    for begin, end, rate in ((0.0, 55.0, 20.0), (55.0, 60.0, 200.0)):
        inside = times[(into >= begin) & (into < end)]
        counts = np.bincount((inside // 60).astype(np.int64), minlength=1_000)
        mean = rate * (end - begin)
        # Counts of a Poisson process in disjoint intervals have equal mean and variance.
        assert counts.mean() == pytest.approx(mean, abs=4 * np.sqrt(mean / 1_000))
        assert counts.var() / mean == pytest.approx(1.0, abs=4 * np.sqrt(2 / 1_000))
        is_within = np.diff(inside // 60) == 0
        gaps = np.diff(inside)[is_within]
        assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)
