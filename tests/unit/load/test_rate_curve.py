"""Arrivals at a changing rate: the expected number by each time, and a Poisson process."""

import numpy as np
import pytest

from aiperf_svc.core.load.arrivals import Arrivals, RateCurve

SERIES = RateCurve([(0, 0), (10, 40), (20, 40), (20, 100), (30, 0), (40, 0), (50, 20)])
"""A rise, a plateau, a jump, a fall to zero, a pause, and a rise."""


def arrivals(curve: RateCurve, pattern: str = "poisson", seed: int = 1) -> np.ndarray:
    made = Arrivals(rate=curve, pattern=pattern, seed=seed, phase=0)  # type: ignore[arg-type]
    return made.take(before_ns=10**18) / 1e9


@pytest.mark.parametrize(
    ("until_s", "expected"),
    [
        (0, 0),
        (5, 50),
        (10, 200),
        (15, 400),
        (20, 600),
        (25, 975),
        (35, 1100),
        (50, 1200),
        (99, 1200),
    ],
)
def test_expected_number_is_the_area_below_the_rate(until_s: float, expected: float) -> None:
    assert SERIES.expected(until_s) == pytest.approx(expected)


def test_times_are_the_inverse_of_the_expected_number() -> None:
    wanted = np.linspace(0.5, 1199.5, 500)
    times = SERIES.times(wanted)
    assert (np.diff(times) > 0).all()
    assert [SERIES.expected(time) for time in times] == pytest.approx(wanted.tolist())


def test_no_arrivals_after_end_or_in_pause() -> None:
    assert np.isinf(SERIES.times(np.array([1200.5]))).all()
    times = arrivals(SERIES)
    assert times.max() < 50
    assert not ((times > 30) & (times < 40)).any()


def test_constant_pattern_has_expected_count_in_each_part() -> None:
    times = arrivals(SERIES, "constant")
    counts = np.histogram(times, bins=[0, 10, 20, 30, 40, 50])[0]
    assert counts.tolist() == pytest.approx([200, 400, 500, 0, 100], abs=1)


def test_counts_follow_a_poisson_process() -> None:
    """Over many seeds, the counts of a part have its area as mean and as variance."""
    bins = [0, 5, 10, 20, 25, 30, 50]
    counts = np.array([np.histogram(arrivals(SERIES, seed=s), bins)[0] for s in range(400)])
    expected = np.diff([SERIES.expected(time) for time in bins])
    # Four standard errors of a mean and of a variance over 400 draws.
    assert np.abs(counts.mean(axis=0) - expected).max() < 4 * np.sqrt(expected.max() / 400)
    assert (np.abs(counts.var(axis=0) / expected - 1) < 4 * np.sqrt(2 / 400)).all()
    # Parts are independent.
    matrix = np.corrcoef(counts.T) - np.eye(len(expected))
    assert np.abs(matrix).max() < 4.5 / np.sqrt(400)


def test_gaps_are_exponential_after_the_time_change() -> None:
    times = arrivals(SERIES, seed=3)
    gaps = np.diff([SERIES.expected(time) for time in times])
    assert gaps.mean() == pytest.approx(1, abs=4 / np.sqrt(len(gaps)))
    # Kolmogorov-Smirnov distance from the exponential distribution at the 0.001 level.
    ordered = np.sort(gaps)
    ranks = np.arange(1, len(gaps) + 1) / len(gaps)
    assert np.abs(ranks - (1 - np.exp(-ordered))).max() < 1.95 / np.sqrt(len(gaps))


def test_stages_are_jumps_between_constant_rates() -> None:
    stages = RateCurve([(0, 100), (2, 100), (2, 10), (12, 10)])
    counts = np.histogram(arrivals(stages, "constant"), bins=[0, 2, 12])[0]
    assert counts.tolist() == pytest.approx([200, 100], abs=1)
