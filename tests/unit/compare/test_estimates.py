"""Percentiles of the parts of a run."""

import numpy as np
import pytest

from aiperf_svc.core.compare.estimates import batch_quantiles
from aiperf_svc.core.results.slo_results import BATCHES


@pytest.mark.parametrize("each", [10, 11, 101, 200, 1999])
def test_percentiles_of_parts_equal_numpys(each: int) -> None:
    shares = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
    values = np.random.default_rng(each).lognormal(size=BATCHES * each)
    times = np.arange(len(values)) * 1_000
    found = batch_quantiles(times, values, shares)
    expected = np.quantile(values.reshape(BATCHES, each), shares, axis=1)
    assert np.array_equal(found, expected)
