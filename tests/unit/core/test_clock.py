"""Clock offsets from four timestamps, against clocks that the test makes up."""

import random

import pytest

from aiperf_svc.core.clock import ClockOffset

OFFSET = 7_000_000_000
SECOND = 10**9


def probe(clock: ClockOffset, at: int, *, there: int, back: int, drift: float = 0.0) -> None:
    def reference(local: int) -> int:
        return local + OFFSET + round(drift * local)

    clock.add(at, reference(at + there), reference(at + there + 1000), at + there + 1000 + back)


def test_a_symmetric_exchange_gives_the_offset_exactly() -> None:
    clock = ClockOffset()
    probe(clock, 0, there=50_000, back=50_000)
    estimate = clock.at(0)
    assert estimate.offset_ns == OFFSET
    assert estimate.uncertainty_ns == 50_000


def test_the_quickest_exchange_is_believed() -> None:
    clock = ClockOffset()
    probe(clock, 0, there=5_000_000, back=100_000)
    probe(clock, SECOND, there=10_000, back=10_000)
    assert clock.at(SECOND).offset_ns == OFFSET
    assert clock.at(SECOND).uncertainty_ns == 10_000


def test_the_true_offset_is_always_within_the_uncertainty() -> None:
    chance = random.Random(3)
    for _ in range(100):
        clock = ClockOffset()
        for step in range(3):
            probe(clock, step, there=chance.randrange(10**6), back=chance.randrange(10**6))
        estimate = clock.at(3)
        assert abs(estimate.offset_ns - OFFSET) <= estimate.uncertainty_ns


def test_drift_is_followed() -> None:
    chance = random.Random(5)
    clock = ClockOffset()
    for step in range(300):
        late = chance.choice((0, 0, 2_000_000))
        probe(clock, step * SECOND, there=20_000 + late, back=20_000, drift=20e-6)
    estimate = clock.at(300 * SECOND)
    assert estimate.drift_ppm == pytest.approx(20, abs=0.5)
    assert estimate.offset_ns == pytest.approx(OFFSET + 300 * 20_000, abs=40_000)


def test_one_host_has_one_clock() -> None:
    clock = ClockOffset()
    clock.same_host()
    probe(clock, 0, there=9_000, back=1)
    assert clock.at(0).offset_ns == 0
    assert clock.at(0).uncertainty_ns == 0


def test_without_a_probe_nothing_is_known() -> None:
    assert not ClockOffset().is_known
