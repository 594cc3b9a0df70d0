"""The open-loop schedule depends only on load, seed and index."""

import numpy as np
import pytest

from aiperf_svc.core.load.arrivals import Arrivals

SECOND = 10**9


def due(count: int, **settings: object) -> np.ndarray:
    defaults: dict[str, object] = {"rate": 100.0, "pattern": "poisson", "seed": 1, "phase": 0}
    return Arrivals(**(defaults | settings)).take(before_ns=2**62, at_most=count)  # type: ignore[arg-type]


def test_constant_arrivals_are_evenly_spaced_from_the_start() -> None:
    assert due(5, pattern="constant").tolist() == [
        0,
        10_000_000,
        20_000_000,
        30_000_000,
        40_000_000,
    ]


@pytest.mark.parametrize(
    ("pattern", "burstiness", "variation"),
    [("poisson", 1.0, 1.0), ("gamma", 4.0, 0.5), ("gamma", 0.25, 2.0)],
)
def test_gaps_have_the_patterns_mean_and_variation(
    pattern: str, burstiness: float, variation: float
) -> None:
    gaps = np.diff(due(200_000, pattern=pattern, burstiness=burstiness)) / SECOND
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    # A gamma distribution with shape k has a coefficient of variation of 1 / sqrt(k).
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.03)


def test_same_seed_has_same_schedule_in_any_chunks() -> None:
    whole = due(10_000)
    arrivals = Arrivals(rate=100.0, pattern="poisson", seed=1, phase=0)
    parts = [arrivals.take(before_ns=step * SECOND) for step in range(1, 130)]
    pieces = np.concatenate(parts)
    assert np.array_equal(pieces[:10_000], whole)


def test_another_seed_or_phase_gives_another_schedule() -> None:
    assert not np.array_equal(due(100), due(100, seed=2))
    assert not np.array_equal(due(100), due(100, phase=1))


def test_take_returns_times_strictly_before() -> None:
    arrivals = Arrivals(rate=100.0, pattern="constant", seed=0, phase=0)
    assert len(arrivals.take(before_ns=SECOND)) == 100
    assert arrivals.take(before_ns=SECOND + 1).tolist() == [SECOND]


def test_linear_ramp_sends_half_the_usual_requests() -> None:
    times = due(1_000, pattern="constant", ramp_ns=4 * SECOND)
    assert np.searchsorted(times, 4 * SECOND) == pytest.approx(200, abs=1)
    assert np.searchsorted(times, 2 * SECOND) == pytest.approx(50, abs=1)
    after = times[times > 4 * SECOND]
    assert np.diff(after).tolist() == pytest.approx([10_000_000] * (len(after) - 1), abs=2)


def test_arrivals_never_go_back_in_time() -> None:
    times = due(50_000, pattern="gamma", burstiness=0.1, ramp_ns=3 * SECOND)
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("ramp_ns", [0, 10**9])
@pytest.mark.parametrize("rate", [1e-6, 1e-9, 1e-300])
def test_an_arrival_after_all_time_is_never_due(rate: float, ramp_ns: int) -> None:
    arrivals = Arrivals(rate=rate, pattern="poisson", ramp_ns=ramp_ns, seed=0, phase=0)
    for hours in (1, 2):
        assert len(arrivals.take(before_ns=hours * 3_600 * 10**9)) == 0
