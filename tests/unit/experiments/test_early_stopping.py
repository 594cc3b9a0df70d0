"""Early stopping proves exactly what it claims, and agrees with MLPerf's published numbers."""

import math

import numpy as np
import pytest

from aiperf_svc.core.compare.student import incomplete_beta
from aiperf_svc.core.experiments.scenario_result import (
    estimate,
    is_proven,
    max_beyond,
    min_queries,
    min_within,
)


def failures_at_most(queries: int, beyond: int, percentile: float) -> float:
    """Return the exact probability of at most this many failures among independent queries."""
    return math.fsum(
        math.comb(queries, k) * (1 - percentile) ** k * percentile ** (queries - k)
        for k in range(beyond + 1)
    )


@pytest.mark.parametrize(
    ("percentile", "floor"), [(0.5, 11), (0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6_636)]
)
def test_fewest_queries_for_an_estimate(percentile: float, floor: int) -> None:
    assert min_queries(percentile) == floor
    assert max_beyond(floor, percentile) == 1
    assert max_beyond(floor - 1, percentile) == 0
    assert estimate(np.arange(floor, dtype=float), percentile) == floor - 1
    assert estimate(np.arange(floor - 1, dtype=float), percentile) is None


def test_early_stopping_counts_match_published_values() -> None:
    assert min_within(0, 0.99) == 459
    assert max_beyond(10_000, 0.99) == 77
    assert estimate(np.arange(10_000, dtype=float), 0.99) == 10_000 - 77


@pytest.mark.parametrize("percentile", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("beyond", [0, 1, 5, 30])
def test_the_proof_is_the_exact_binomial_one(percentile: float, beyond: int) -> None:
    within = min_within(beyond, percentile)
    assert failures_at_most(within + beyond, beyond, percentile) < 0.01
    assert failures_at_most(within - 1 + beyond, beyond, percentile) >= 0.01
    assert is_proven(within + beyond, beyond, percentile)
    assert not is_proven(within + beyond - 1, beyond, percentile)


@pytest.mark.parametrize(("queries", "percentile"), [(1_000_000, 0.5), (2_000_000, 0.99)])
def test_millions_of_queries_agree_with_the_normal_distribution(
    queries: int, percentile: float
) -> None:
    deviation = math.sqrt(queries * percentile * (1 - percentile))
    expected = queries * (1 - percentile) - 2.326348 * deviation
    assert max_beyond(queries, percentile) == pytest.approx(expected, abs=0.02 * deviation)


@pytest.mark.parametrize(("a", "b"), [(200, 3), (40, 40), (500, 90)])
def test_the_beta_function_is_a_sum_of_binomials(a: int, b: int) -> None:
    x = a / (a + b)
    tail = math.fsum(
        math.comb(a + b - 1, k) * x**k * (1 - x) ** (a + b - 1 - k) for k in range(a, a + b)
    )
    assert incomplete_beta(a, b, x) == pytest.approx(tail, rel=1e-9)
