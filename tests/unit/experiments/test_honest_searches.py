"""Searches of a simulated queue find its true capacity, which is computed independently."""

import numpy as np
import pytest

from aiperf_svc.config.search import MAX_POINTS
from aiperf_svc.core.experiments.search import Search, SearchSpace
from aiperf_svc.core.experiments.search_report import Ending, SearchPoint
from tests.support.queues import run, true_knee

SEARCHES = 20


@pytest.fixture(scope="module")
def knee() -> float:
    return true_knee(0.01)


@pytest.mark.parametrize(("low", "high"), [(1, 1000), (20, 300)])
def test_the_bracket_contains_the_true_knee(knee: float, low: float, high: float) -> None:
    hits, widths = 0, []
    for seed in range(SEARCHES):
        space = SearchSpace(
            parameter="load.request_rate",
            low=low,
            high=high,
            is_whole=False,
            longer={"load.duration": 180},
        )
        search = Search(space)
        run(search, np.random.default_rng(seed), 60.0)
        lower, upper = search.bracket
        assert isinstance(lower, SearchPoint)
        assert isinstance(upper, SearchPoint)
        assert search.ending is Ending.BRACKETED
        assert len(search.points) <= MAX_POINTS
        assert min(lower.confirmations, upper.confirmations) > 0
        hits += lower.value < knee < upper.value
        widths.append(upper.value / lower.value)
    assert hits >= 19
    # A bracket of the whole range would also contain the knee.
    assert np.mean(widths) < 1.12
