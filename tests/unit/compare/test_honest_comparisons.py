"""Comparisons rarely call equal simulated systems different, and mostly find differences."""

import numpy as np
import pytest
from numpy.typing import NDArray

from aiperf_svc.core.compare.comparison import ComparisonRow, Word
from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey, RunValue
from benchmarks.compare.simulated_queues import Floats, latencies
from tests.support.runs_to_compare import P50, P99, compared, measured, run_of

PAIRS = 200
"""Number of systems in a ring. Each is compared with its two neighbours."""
MAX_ALARMS = 16
"""8% of the pairs for a test at the 5% level. A correct test exceeds this with a probability of 2%.
A test with 12% of false alarms stays within it with a probability of 5%."""
REQUESTS = 10_000
"""Batches of 1,000. Those of longer runs are less correlated."""
RUN_NOISE = 0.02
"""Variation of the systems' speed from run to run."""
LOADS = (0.5, 0.8, 0.9)


Systems = dict[float, tuple[Floats, Floats]]
"""Arrival times and latencies at each load, one row for each system."""


@pytest.fixture(scope="module")
def systems() -> Systems:
    # Simulate all systems at once, because the cost depends on the steps, not on the queues.
    each_load = np.repeat(LOADS, PAIRS)
    due, times = latencies(each_load, systems=len(each_load), requests=REQUESTS, seed=1)
    return {load: (due[each_load == load], times[each_load == load]) for load in LOADS}


@pytest.fixture(scope="module")
def percentiles(systems: Systems) -> dict[float, dict[RowKey, Floats]]:
    """Return the percentiles of each system at each load."""
    return {
        load: dict(zip((P50, P99), np.quantile(times, (0.5, 0.99), axis=1), strict=True))
        for load, (_, times) in systems.items()
    }


@pytest.mark.parametrize("load", LOADS)
def test_interval_within_runs_rarely_excludes_an_equal_system(
    load: float, systems: Systems
) -> None:
    due, times = systems[load]
    alarms = {P50: 0, P99: 0}
    runs = [run_of(str(index), *each) for index, each in enumerate(zip(due, times, strict=True))]
    for index, run in enumerate(runs):
        for row in compared([runs[index - 1]], [run]).rows:
            assert row.low is not None
            assert row.high is not None
            assert row.low <= row.delta <= row.high
            alarms[row.key] += not row.low <= 0 <= row.high
            assert row.word is Word.UNJUDGED
    assert max(alarms.values()) <= MAX_ALARMS, alarms


def rows(
    values: dict[RowKey, Floats], *, runs: int, change: float
) -> dict[RowKey, list[ComparisonRow]]:
    """Return the rows of PAIRS comparisons with this many runs a side and with speed that varies
    between runs. Each run is one of the simulated systems, chosen at random."""
    random = np.random.default_rng(7)
    found: dict[RowKey, list[ComparisonRow]] = {P50: [], P99: []}
    for _ in range(PAIRS):
        drawn = random.choice(PAIRS, size=(2, runs), replace=False)
        speed = random.normal(1.0, RUN_NOISE, size=(2, runs))
        speed[1] *= 1 + change
        for row in compared(*_sides(values, drawn, speed)).rows:
            found[row.key].append(row)
    return found


def _sides(
    values: dict[RowKey, Floats], drawn: NDArray[np.int64], speed: Floats
) -> list[list[MeasuredRun]]:
    return [
        [
            measured(
                f"{name}{index}",
                {
                    key: RunValue(float(each[which] * speed[side, index]), REQUESTS)
                    for key, each in values.items()
                },
            )
            for index, which in enumerate(drawn[side])
        ]
        for side, name in enumerate("ab")
    ]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("runs", [3, 5])
def test_several_runs_of_equal_systems_rarely_differ(
    load: float, runs: int, percentiles: dict[float, dict[RowKey, Floats]]
) -> None:
    for key, each in rows(percentiles[load], runs=runs, change=0.0).items():
        assert sum((row.p or 0.0) < 0.05 for row in each) <= MAX_ALARMS, key
        assert sum(row.word in (Word.WORSE, Word.BETTER) for row in each) <= MAX_ALARMS, key


def test_five_runs_find_ten_percent_more_latency(
    percentiles: dict[float, dict[RowKey, Floats]],
) -> None:
    for key, each in rows(percentiles[0.5], runs=5, change=0.10).items():
        words = [row.word for row in each]
        assert words.count(Word.WORSE) >= 0.9 * PAIRS, key
        assert Word.BETTER not in words
