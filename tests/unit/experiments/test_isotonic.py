"""The fitted monotone curve is the nearest one."""

import itertools

import numpy as np
import pytest

from aiperf_svc.core.experiments.search_report import crossing, rising


def nearest_rising(values: list[float], weights: list[float]) -> list[float]:
    """Return the best of all partitions of the values into blocks with one mean each."""
    count = len(values)
    best: tuple[float, list[float]] = (float("inf"), [])
    for cuts in itertools.product([False, True], repeat=count - 1):
        block = np.cumsum([0, *cuts])
        means = [np.average(values, weights=np.where(block == b, weights, 0)) for b in set(block)]
        curve = [float(means[b]) for b in block]
        if all(a <= b + 1e-12 for a, b in itertools.pairwise(curve)):
            cost = sum(w * (v - c) ** 2 for v, c, w in zip(values, curve, weights, strict=True))
            best = min(best, (cost, curve))
    return best[1]


@pytest.mark.parametrize("seed", range(20))
def test_no_rising_curve_is_nearer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=8).tolist(), rng.uniform(0.1, 3, size=8).tolist()
    assert rising(values, weights) == pytest.approx(nearest_rising(values, weights))


def test_the_crossing_lies_between_the_points_around_it() -> None:
    assert crossing([100, 400], [0.0, 2.0], 1.0) == pytest.approx(200)
    assert crossing([100, 400], [0.0, 0.5], 1.0) is None
    assert crossing([1, 2, 4], [0.0, 3.0, 9.0], 9.0) is None
