"""Two machines with simulated clocks and a simulated network. Times are seconds of true time."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from aiperf_svc.core.control.clock_offset import ClockReading

Delay = Callable[[float], float]
"""Maps a true time to the one-way delay in seconds of a packet sent then."""
PERIOD = 1_200 / (2 * math.pi)
"""Seconds in which the phase of a wandering clock rate advances by one radian."""


@dataclass
class Machine:
    """A raw clock that drifts and wanders, and a wall clock that is slewed and stepped."""

    ppm: float = 0.0
    wander_ppm: float = 0.0
    """Amplitude of the rate's change with temperature, which has a period of twenty minutes."""
    raw_start_s: float = 1_000.0
    wall_start_s: float = 1_700_000_000.0
    slews: list[tuple[float, float, float]] = field(default_factory=list)
    """Begin, end, and how many ppm the wall clock runs faster than the raw clock."""
    steps: list[tuple[float, float]] = field(default_factory=list)
    """When the wall clock is stepped, and by how many seconds."""

    def read(self, t: float) -> ClockReading:
        """Return both clocks at a true time."""
        moved = t * self.ppm + self.wander_ppm * PERIOD * (1 - math.cos(t / PERIOD))
        slewed = stepped = 0.0
        for begin, end, ppm in self.slews:
            slewed += max(0.0, min(t, end) - begin) * ppm
        for at, by in self.steps:
            stepped += by if t >= at else 0.0
        # Convert to integer nanoseconds first: a float of a wall clock's size cannot resolve them.
        raw = round(self.raw_start_s * 1e9) + round(t * 1e9 + moved * 1e3)
        apart = round((self.wall_start_s - self.raw_start_s) * 1e9)
        return ClockReading(raw, raw + apart + round(slewed * 1e3 + stepped * 1e9))


@dataclass
class Exchange:
    """One probe as the worker sees it."""

    at: float
    """True time at which the response arrived."""
    sent: ClockReading
    received: ClockReading
    left: ClockReading
    arrived: ClockReading
    true_offset_ns: int
    """True offset of the wall clocks when the response arrived."""


def true_offset_ns(local: Machine, reference: Machine, t: float) -> int:
    """Return `reference - local` of the wall clocks at a true time."""
    return reference.read(t).wall_ns - local.read(t).wall_ns


def exchange(local: Machine, reference: Machine, t: float, there: float, back: float) -> Exchange:
    """Return a probe sent at `t` with these two one-way delays in seconds."""
    left = t + there + 20e-6
    end = left + back
    arrived = local.read(end)
    return Exchange(
        at=end,
        sent=local.read(t),
        received=reference.read(t + there),
        left=reference.read(left),
        arrived=arrived,
        true_offset_ns=reference.read(end).wall_ns - arrived.wall_ns,
    )


def quiet(chance: random.Random) -> Delay:
    """Return a delay of 30 to 80 us."""
    return lambda t: chance.uniform(30e-6, 80e-6)


def busy(chance: random.Random) -> Delay:
    """Return a delay of 2 to 6 ms."""
    return lambda t: chance.uniform(2e-3, 6e-3)


def bursty(chance: random.Random) -> Delay:
    """Return delays that are quiet except for periods of minutes with 1 to 50 ms. One probe in
    fifty is fast even then."""

    def delay(t: float) -> float:
        is_burst = int(t / 170) % 3 == 1
        if is_burst and chance.random() < 0.98:
            return 1e-3 + chance.expovariate(1 / 5e-3) % 50e-3
        return chance.uniform(30e-6, 80e-6)

    return delay
