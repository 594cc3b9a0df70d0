"""The open-loop schedule: when requests are due, independent of the server.

Arrival `i` is due at a time that depends on the load, the seed and `i` alone. Gaps are drawn with
mean one (constant, exponential, or gamma of a given shape) and summed; the sum is then mapped
through the inverse of the expected count of arrivals by time t, which is `rate * t` after the ramp
and `rate * t^2 / (2 * ramp)` within it (time change of a Poisson process: Çinlar, Introduction to
Stochastic Processes, 1975, ch. 4.7). A rate that changes has a curve of its own instead.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.load.bursts import BurstCurve
from aiperf_svc.core.load.rate_curve import RateCurve

BLOCK = 4_096
"""Number of arrivals drawn at once."""

_NEVER_S = 4e9
"""Time after which nothing is due, within 64 bits of nanoseconds."""

Pattern = Literal["constant", "poisson", "gamma"]


Curve = RateCurve | BurstCurve


class Arrivals:
    """The due times of one phase, in order, as nanoseconds from its start."""

    def __init__(
        self,
        *,
        rate: float | Curve,
        pattern: Pattern,
        burstiness: float = 1.0,
        ramp_ns: int = 0,
        seed: int,
        phase: int,
    ) -> None:
        """Set up the schedule of one phase: `rate` per second, or a curve, which has no ramp;
        `phase` separates the phases of one seed."""
        self._rate = float(rate) if isinstance(rate, int) else rate
        self._pattern = pattern
        self._burstiness = burstiness
        self._ramp_s = ramp_ns / 1e9
        self._random = np.random.default_rng(np.random.SeedSequence([seed, 0xA221, phase]))
        self._drawn = 0.0
        self._ready: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def take(self, *, before_ns: int, at_most: int | None = None) -> NDArray[np.int64]:
        """Return the next arrivals due before `before_ns`, `at_most` of them, as ascending
        int64."""
        limit = at_most if at_most is not None else 2**62
        while len(self._ready) < limit and (not len(self._ready) or self._ready[-1] < before_ns):
            self._ready = np.concatenate([self._ready, self._draw()])
        count = min(limit, int(np.searchsorted(self._ready, before_ns, side="left")))
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def _draw(self) -> NDArray[np.int64]:
        if self._pattern == "constant":
            gaps = np.ones(BLOCK)
        elif self._pattern == "poisson":
            gaps = self._random.exponential(size=BLOCK)
        else:
            shape = self._burstiness
            gaps = self._random.gamma(shape, 1.0 / shape, size=BLOCK)
        expected = self._drawn + np.cumsum(gaps)
        self._drawn = float(expected[-1])
        if self._pattern == "constant":
            # The first one is due at the start, not one gap later.
            expected = expected - 1.0
        due_s = np.minimum(self._times(expected), _NEVER_S)
        return np.rint(due_s * 1e9).astype(np.int64)

    def _times(self, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds at which so many arrivals are expected."""
        if not isinstance(self._rate, float):
            return self._rate.times(expected)
        if self._ramp_s <= 0:
            return expected / self._rate
        within = self._rate * self._ramp_s / 2
        early = np.sqrt(2 * self._ramp_s * np.minimum(expected, within) / self._rate)
        late = self._ramp_s + (expected - within) / self._rate
        return np.where(expected <= within, early, late)
