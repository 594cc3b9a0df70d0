"""Percentiles are exact, and null if unknown."""

import numpy as np
import pytest

from aiperf_svc.core.stats.percentiles import QUANTILES, describe, is_thin


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 101, 999, 12_345])
def test_percentiles_are_numpys_to_the_last_bit(count: int) -> None:
    values = np.random.default_rng(count).lognormal(3, 1, count)
    found = describe(values.copy()).stats
    for name, q in QUANTILES.items():
        assert found[name] == np.quantile(values, q), name
    assert (found["min"], found["max"]) == (values.min(), values.max())


@pytest.mark.parametrize("count", [1, 5, 4_000])
def test_moments_are_the_populations(count: int) -> None:
    values = np.random.default_rng(count).normal(50, 9, count)
    found = describe(values.copy()).stats
    assert found["avg"] == pytest.approx(values.mean())
    assert found["std"] == pytest.approx(values.std(ddof=0), abs=1e-9)
    assert found["sum"] == pytest.approx(values.sum())


def test_percentile_among_censored_values_has_a_bound() -> None:
    completed = np.arange(1.0, 98.0)
    found = describe(completed, bounds=np.full(3, 500.0))
    assert found.stats["p50"] == 50.5
    assert found.stats["p95"] == pytest.approx(95.05)
    assert found.stats["p99"] is None
    assert found.beyond["p99"] == pytest.approx(500.0)
    assert (found.count, found.censored, found.censored_share) == (97, 3, 0.03)


def test_percentile_next_to_a_censored_value_is_null() -> None:
    # Ten values. p90 is at position 8.1, between the ninth and the tenth.
    nine_known = describe(np.arange(1.0, 10.0), bounds=np.array([20.0]))
    assert nine_known.stats["p90"] is None
    assert nine_known.beyond["p90"] == pytest.approx(9 + 0.1 * 11)
    assert nine_known.stats["p75"] == pytest.approx(7.75)


def test_abandoned_requests_bound_by_the_time_waited() -> None:
    completed = np.arange(1.0, 91.0)
    found = describe(completed, bounds=np.full(10, 5.0))
    everything = np.sort(np.concatenate((np.arange(1.0, 91.0), np.full(10, 5.0))))
    assert found.stats["p95"] is None
    assert found.beyond["p95"] == np.percentile(everything, 95) < 90


def test_censored_mean_maximum_and_spread_are_unknown() -> None:
    found = describe(np.array([1.0, 3.0]), bounds=np.array([8.0]))
    assert [found.stats[name] for name in ("avg", "max", "std", "sum")] == [None] * 4
    assert found.stats["min"] == 1.0
    assert found.beyond["avg"] == 4.0
    assert found.beyond["max"] == 8.0


def test_all_censored_values_yield_only_bounds() -> None:
    found = describe(np.zeros(0), bounds=np.array([2.0, 4.0]))
    assert all(value is None for value in found.stats.values())
    assert found.beyond["p50"] == 3.0
    assert found.censored_share == 1.0


@pytest.mark.parametrize(
    ("q", "enough"), [(0.99, 100), (0.01, 100), (0.999, 1000), (0.9, 10), (0.5, 2), (0.05, 20)]
)
def test_percentile_is_thin_until_one_value_lies_outside(q: float, enough: int) -> None:
    assert is_thin(q, enough - 1)
    assert not is_thin(q, enough)


def test_thin_percentiles_are_named_and_ours_are_null() -> None:
    kept = describe(np.arange(50.0))
    assert kept.unreliable == ("p1", "p99", "p99_9")
    assert kept.stats["p99"] == pytest.approx(48.51)
    withheld = describe(np.arange(50.0), is_thin_null=True)
    assert withheld.stats["p99"] is None
    assert withheld.stats["p95"] == pytest.approx(46.55)
    assert withheld.beyond == {}
