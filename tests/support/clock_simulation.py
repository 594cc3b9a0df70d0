"""Two machines whose clocks and network the test makes up, in seconds of a true time."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from aiperf_svc.core.control.clock_offset import ClockReading

Delay = Callable[[float], float]
"""Seconds on one way for what is sent at a true time."""
PERIOD = 1_200 / (2 * math.pi)
"""Seconds in which a rate that wanders goes through one radian."""


@dataclass
class Machine:
    """A raw clock that drifts and wanders, and a wall clock that is slewed and set."""

    ppm: float = 0.0
    wander_ppm: float = 0.0
    """Amplitude of a rate that goes up and down with the temperature, every twenty minutes."""
    raw_start_s: float = 1_000.0
    wall_start_s: float = 1_700_000_000.0
    slews: list[tuple[float, float, float]] = field(default_factory=list)
    """From, to, and how many ppm faster than the raw clock."""
    steps: list[tuple[float, float]] = field(default_factory=list)
    """When the wall clock is set, and by how many seconds."""

    def read(self, t: float) -> ClockReading:
        """Both clocks at a true time."""
        moved = t * self.ppm + self.wander_ppm * PERIOD * (1 - math.cos(t / PERIOD))
        slewed = stepped = 0.0
        for begin, end, ppm in self.slews:
            slewed += max(0.0, min(t, end) - begin) * ppm
        for at, by in self.steps:
            stepped += by if t >= at else 0.0
        # Times in whole nanoseconds first: a float of a wall clock's size has no nanoseconds.
        raw = round(self.raw_start_s * 1e9) + round(t * 1e9 + moved * 1e3)
        apart = round((self.wall_start_s - self.raw_start_s) * 1e9)
        return ClockReading(raw, raw + apart + round(slewed * 1e3 + stepped * 1e9))


@dataclass
class Exchange:
    """One probe, as the worker sees it."""

    at: float
    """True time of the response's arrival."""
    sent: ClockReading
    received: ClockReading
    left: ClockReading
    arrived: ClockReading
    true_offset_ns: int
    """Of the wall clocks, at the arrival."""


def true_offset_ns(local: Machine, reference: Machine, t: float) -> int:
    """`reference - local` of the wall clocks at a true time."""
    return reference.read(t).wall_ns - local.read(t).wall_ns


def exchange(local: Machine, reference: Machine, t: float, there: float, back: float) -> Exchange:
    """A probe sent at `t`, with the delays of its two ways in seconds."""
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
    """30 to 80 us."""
    return lambda t: chance.uniform(30e-6, 80e-6)


def busy(chance: random.Random) -> Delay:
    """2 to 6 ms, always."""
    return lambda t: chance.uniform(2e-3, 6e-3)


def bursty(chance: random.Random) -> Delay:
    """Quiet, but for minutes at a time between 1 and 50 ms, with a quick one among fifty."""

    def delay(t: float) -> float:
        is_burst = int(t / 170) % 3 == 1
        if is_burst and chance.random() < 0.98:
            return 1e-3 + chance.expovariate(1 / 5e-3) % 50e-3
        return chance.uniform(30e-6, 80e-6)

    return delay
