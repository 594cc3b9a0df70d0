"""Clock offsets from probes between machines with simulated clocks."""

import pickle
import random
from dataclasses import dataclass

import pytest

from aiperf_svc.core.control.clock_offset import ClockOffset, ClockReading
from tests.support.clock_simulation import (
    Delay,
    Exchange,
    Machine,
    bursty,
    busy,
    exchange,
    quiet,
    true_offset_ns,
)

MS = 1_000_000
US = 1_000


@dataclass
class SimulatedClock:
    """Results of a simulated run in nanoseconds."""

    errors: list[int]
    uncertainties: list[int]
    clock: ClockOffset


def add(clock: ClockOffset, probe: Exchange) -> None:
    clock.add(
        sent_raw_ns=probe.sent.raw_ns,
        received_raw_ns=probe.received.raw_ns,
        reference=probe.left,
        local=probe.arrived,
    )


def simulate(
    local: Machine, reference: Machine, there: Delay, back: Delay, *, seconds: float
) -> SimulatedClock:
    """Simulate a worker that probes like the service. The offset is compared with the truth at each
    response and just before the next probe, except while a step of the other clock has not been
    noticed."""
    clock, t, sent = ClockOffset(), 0.0, 0
    outcome = SimulatedClock([], [], clock)
    while t < seconds:
        probe = exchange(local, reference, t, there(t), back(t))
        add(clock, probe)
        sent += 1
        t = max(t + (0.02 if sent < 8 else 1.0), probe.at)
        moments = [probe.at, t]
        if any(probe.at - 0.1 < at <= t for at, _ in reference.steps):
            moments = []
        for moment in moments:
            here = local.read(moment)
            estimate = clock.at(here)
            error = abs(estimate.offset_ns - reference.read(moment).wall_ns + here.wall_ns)
            assert error <= estimate.uncertainty_ns, f"at {moment:.3f} s"
        outcome.errors.append(abs(clock.latest.offset_ns - probe.true_offset_ns))
        outcome.uncertainties.append(clock.latest.uncertainty_ns)
    return outcome


def one_exchange(there: float, back: float) -> ClockOffset:
    clock = ClockOffset()
    add(clock, exchange(Machine(), Machine(wall_start_s=1_700_000_007.0), 0.0, there, back))
    return clock


def test_symmetric_exchange_yields_the_offset() -> None:
    found = one_exchange(50e-6, 50e-6).latest
    assert found.offset_ns == pytest.approx(7_000 * MS, abs=100)
    assert found.uncertainty_ns == pytest.approx(50 * US, abs=200)


def test_one_slow_direction_is_within_the_uncertainty() -> None:
    found = one_exchange(6e-3, 50e-6).latest
    assert abs(found.offset_ns - 7_000 * MS) <= found.uncertainty_ns
    assert found.uncertainty_ns == pytest.approx(3.025 * MS, rel=0.01)


def test_slow_probes_after_quick_ones_change_nothing() -> None:
    chance = random.Random(1)
    still, slow = quiet(chance), busy(chance)
    local, reference = Machine(ppm=20), Machine(wall_start_s=5.0)
    found = simulate(local, reference, lambda t: still(t) if t < 20 else slow(t), still, seconds=60)
    # Forty seconds later, the uncertainty has grown by the possible change of the rate.
    assert max(found.errors[20:]) < 0.4 * MS
    assert max(found.uncertainties) < 0.6 * MS


@pytest.mark.parametrize("ppm", [-50, -20, 0, 20, 50])
def test_quiet_probes_find_offset_within_40_microseconds(ppm: float) -> None:
    chance = random.Random(2)
    local, reference = Machine(ppm=ppm, wander_ppm=2), Machine(ppm=-5, wall_start_s=9.0)
    found = simulate(local, reference, quiet(chance), quiet(chance), seconds=1_800)
    assert max(found.errors[30:]) < 40 * US
    assert max(found.uncertainties[30:]) < 80 * US


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["one-sided", "bursty", "one-sided bursts"])
def test_the_uncertainty_covers_the_error_for_hours(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    still, slow, bursts = quiet(chance), busy(chance), bursty(chance)
    ways = {
        "one-sided": (slow, still),
        "bursty": (bursts, bursts),
        "one-sided bursts": (still, bursts),
    }[kind]
    local = Machine(ppm=chance.uniform(-50, 50), wander_ppm=chance.uniform(0, 3))
    reference = Machine(ppm=chance.uniform(-50, 50), wall_start_s=chance.uniform(0, 1e6))
    found = simulate(local, reference, *ways, seconds=2 * 3_600)
    assert found.clock.latest.steps_ns == 0
    if kind != "one-sided":
        assert max(found.uncertainties[30:]) < 4 * MS


def test_slewed_clock_is_followed() -> None:
    chance = random.Random(4)
    local = Machine(ppm=30, slews=[(300, 320, 500), (600, 900, -80)])
    reference = Machine(ppm=-10, slews=[(400, 500, -500), (0, 2_000, 12)], wall_start_s=3.0)
    found = simulate(local, reference, quiet(chance), quiet(chance), seconds=1_500)
    assert max(found.uncertainties[30:]) < 100 * US
    assert found.clock.latest.steps_ns == 0


def test_step_of_worker_clock_is_followed_at_once() -> None:
    chance = random.Random(5)
    local = Machine(steps=[(100.5, 0.25)])
    found = simulate(local, Machine(ppm=20), quiet(chance), quiet(chance), seconds=200)
    before, after = local.read(100.4), local.read(100.6)
    assert found.clock.latest.offset_ns == pytest.approx(-250 * MS, abs=5 * MS)
    assert after.wall_ns - before.wall_ns == pytest.approx(450 * MS)
    assert max(found.uncertainties[30:]) < 80 * US


@pytest.mark.parametrize("step_ms", [-40, 2, 700])
def test_step_of_other_clock_is_followed_and_counted(step_ms: int) -> None:
    chance = random.Random(6)
    reference = Machine(ppm=20, steps=[(100.5, step_ms / 1e3)])
    found = simulate(Machine(), reference, quiet(chance), quiet(chance), seconds=200)
    assert max(found.uncertainties[30:]) < 80 * US
    assert found.clock.latest.steps_ns == pytest.approx(abs(step_ms) * MS, abs=0.1 * MS)


def test_raw_clock_jump_is_followed_and_counted() -> None:
    chance = random.Random(7)
    clock, local, t = ClockOffset(), Machine(), 0.0
    for second in range(100):
        # A virtual machine that moves to another host continues with that host's clock.
        reference = Machine(raw_start_s=50 if second < 60 else 50.02, wall_start_s=8.0)
        reference.wall_start_s += 0.02 if second >= 60 else 0
        t = float(second)
        probe = exchange(local, reference, t, chance.uniform(3e-5, 8e-5), 5e-5)
        add(clock, probe)
        assert abs(clock.latest.offset_ns - probe.true_offset_ns) <= clock.latest.uncertainty_ns
    assert clock.latest.steps_ns == pytest.approx(20 * MS, abs=0.3 * MS)


def test_the_rate_of_the_other_machine_is_learned() -> None:
    chance = random.Random(8)
    local, reference = Machine(ppm=-20), Machine(ppm=15)
    found = simulate(local, reference, quiet(chance), quiet(chance), seconds=600)
    # Without the rate of 35 ppm, it would be off by 3.5 ms after 100 s without a probe.
    estimate = found.clock.at(local.read(700))
    assert abs(estimate.offset_ns - true_offset_ns(local, reference, 700)) < 0.3 * MS


def test_memory_does_not_grow_with_probes() -> None:
    chance = random.Random(9)

    clock, local, reference = ClockOffset(), Machine(ppm=20), Machine()

    def size_after(first: int, last: int) -> int:
        for second in range(first, last):
            add(clock, exchange(local, reference, second, chance.uniform(3e-5, 8e-5), 5e-5))
        return len(pickle.dumps(clock))

    at_first = size_after(0, 1_000)
    assert size_after(1_000, 3_000) <= at_first + 64


def test_one_host_has_one_clock() -> None:
    clock = one_exchange(9e-6, 1e-6)
    clock.same_host()
    assert clock.at(ClockReading(0, 0)).offset_ns == 0
    assert clock.latest.same_host
    assert clock.latest.uncertainty_ns == 0


def test_offset_is_unknown_without_a_probe() -> None:
    assert not ClockOffset().is_known
