"""The pooled histogram: error bound, exact sums, and parts that add up to the whole."""

import math

import numpy as np
import pytest

from aiperf_svc.core.stats.histogram import (
    RELATIVE_ERROR,
    Histogram,
    buckets_of,
    delta_of,
    middle_of,
)
from aiperf_svc.core.stats.percentiles import QUANTILES
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import HistogramDelta

RNG = np.random.default_rng(3)
SAMPLES = {
    "lognormal": (RNG.lognormal(15, 1.5, 50_000)).astype(np.int64),
    "two modes": np.concatenate([RNG.normal(5e6, 1e5, 9_000), RNG.normal(8e8, 1e7, 100)]).astype(
        np.int64
    ),
    "small": RNG.integers(0, 300, 5_000),
    "with zeros": np.concatenate([np.zeros(500, dtype=np.int64), RNG.integers(0, 10**9, 500)]),
    "few": np.array([5, 7_000_000, 9]),
    "one": np.array([123_456_789]),
}


def histogram_of(values: np.ndarray) -> Histogram:
    histogram = Histogram()
    histogram.add(values)
    return histogram


@pytest.mark.parametrize("name", SAMPLES)
def test_percentiles_are_within_the_stated_error(name: str) -> None:
    values = SAMPLES[name]
    histogram = histogram_of(values)
    for q in (0.0, *QUANTILES.values(), 1.0):
        exact = float(np.quantile(values, q))
        assert histogram.percentile(q) == pytest.approx(exact, rel=RELATIVE_ERROR), q


@pytest.mark.parametrize("name", SAMPLES)
def test_sums_and_extremes_are_exact(name: str) -> None:
    values = SAMPLES[name]
    histogram = histogram_of(values)
    assert histogram.total == len(values)
    assert histogram.sum_ns == sum(values.tolist())
    assert (histogram.min_ns, histogram.max_ns) == (values.min(), values.max())
    assert histogram.mean_ns == pytest.approx(values.mean(), rel=1e-12)
    assert histogram.std_ns == pytest.approx(values.std(), rel=1e-6, abs=1e-3)


def test_merged_deltas_equal_the_whole_histogram() -> None:
    values = SAMPLES["lognormal"]
    merged = Histogram()
    for part in np.array_split(values, 17):
        merged.merge(delta_of(part, phase=Phase.PROFILING, tag="x"))
    whole = histogram_of(values)
    for name in ("total", "sum_ns", "min_ns", "max_ns", "zeros"):
        assert getattr(merged, name) == getattr(whole, name), name
    assert merged.std_ns == pytest.approx(whole.std_ns)
    for rank in np.linspace(0, 1, 1_001).tolist():
        assert merged.percentile(rank) == whole.percentile(rank), rank


def test_buckets_grow_as_stated() -> None:
    values = np.unique(
        np.concatenate([np.arange(5_000), 2 ** np.arange(54) - 1, 2 ** np.arange(54)])
    )
    buckets = buckets_of(values)
    assert (np.diff(buckets) >= 0).all()
    for value, bucket in zip(values.tolist(), buckets.tolist(), strict=True):
        assert abs(middle_of(bucket) - value) <= value * RELATIVE_ERROR


def test_durations_of_a_few_nanoseconds_are_exact() -> None:
    for value in range(512):
        (bucket,) = buckets_of(np.array([value])).tolist()
        assert middle_of(bucket) == (value if value < 256 else value // 2 * 2 + 0.5), value


def test_negative_gap_counts_as_zero() -> None:
    assert buckets_of(np.array([-5, 0])).tolist() == [0, 0]
    found = Histogram()
    found.add(np.array([-30, 10, 20]))
    assert (found.min_ns, found.sum_ns, found.mean_ns, found.zeros) == (0, 30, 10, 1)


def test_the_longest_durations_stay_within_the_buckets() -> None:
    histogram = histogram_of(np.array([2**62, 1]))
    assert histogram.max_ns == 2**62
    assert histogram.percentile(0.0) == 1


def test_an_empty_histogram_has_no_numbers() -> None:
    histogram = Histogram()
    histogram.add(np.zeros(0, dtype=np.int64))
    assert histogram.total == 0
    assert all(
        math.isnan(x) for x in (histogram.percentile(0.5), histogram.mean_ns, histogram.std_ns)
    )


def test_impossible_buckets_are_refused() -> None:
    delta = delta_of(np.array([5]), phase=Phase.PROFILING, tag="x")
    bad = HistogramDelta(
        Phase.PROFILING, "x", np.array([9_999], "<i4").tobytes(), delta.counts, 1, 5, 5, 5, 25.0
    )
    with pytest.raises(ValueError, match="impossible buckets"):
        Histogram().merge(bad)
