"""The open-loop schedule: when requests are due, independent of the server.

Arrival `i` is due at a time that depends only on the load, the seed and `i`. Gaps are drawn with
mean one (constant, exponential, or gamma of a given shape) and summed. The sum is then mapped
through the inverse of the expected count of arrivals by time t, which is `rate * t` after the ramp
and `rate * t^2 / (2 * ramp)` within it (time change of a Poisson process: Çinlar, Introduction to
Stochastic Processes, 1975, ch. 4.7). A changing rate has its own curve instead.

In a `BurstCurve`, each period starts with the usual rate and ends with the burst. The expected
number of arrivals is linear within each of the two parts, so it and its inverse need no table for a
load of any length. In a `RateCurve`, the rate is linear between points, so the expected number,
which is its integral, is quadratic within a part.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RateCurve:
    """Rates by time in seconds. Nothing arrives after the last point."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """`points` are (time, rate) in the order of time; two points at one time are a jump."""
        self._times, self._rates = np.array(points, dtype=np.float64).T
        lengths = np.diff(self._times)
        areas = lengths * (self._rates[1:] + self._rates[:-1]) / 2
        self._expected = np.concatenate(([0.0], np.cumsum(areas)))
        """Number of arrivals expected by each point."""

    def expected(self, until_s: float) -> float:
        """Return the expected number of arrivals until a time."""
        if until_s >= self._times[-1]:
            return float(self._expected[-1])
        part = max(0, int(np.searchsorted(self._times, until_s, side="right")) - 1)
        into_s = until_s - self._times[part]
        return float(
            self._expected[part] + into_s * (self._rates[part] + self._slope(part) * into_s / 2)
        )

    def times(self, expected: Floats) -> Floats:
        """Return when so many arrivals are expected; infinite if the number is never reached."""
        part = np.searchsorted(self._expected, expected, side="right") - 1
        is_over = part >= len(self._expected) - 1
        part = np.minimum(part, len(self._expected) - 2)
        rest, rate = expected - self._expected[part], self._rates[part]
        # rate * t + slope * t^2 / 2 = rest, solved without dividing by a slope of zero.
        root = np.sqrt(np.maximum(rate**2 + 2 * self._slope(part) * rest, 0.0))
        into_s = np.divide(2 * rest, rate + root, out=np.zeros_like(rest), where=rate + root > 0)
        return np.where(is_over, np.inf, self._times[part] + into_s)

    def _slope(self, part: NDArray[np.intp] | int) -> Floats:
        length = self._times[np.add(part, 1)] - self._times[part]
        rise = self._rates[np.add(part, 1)] - self._rates[part]
        slope: Floats = np.divide(rise, length, out=np.zeros_like(rise), where=length > 0)
        return slope


def curve_of(points: Sequence[tuple[int, float]]) -> RateCurve:
    """Return the curve through points whose times are nanoseconds."""
    return RateCurve([(at / 1e9, rate) for at, rate in points])


class BurstCurve:
    """Rates by time in seconds, without an end."""

    def __init__(self, *, usual: float, burst: float, length_s: float, every_s: float) -> None:
        """`usual` requests per second, and `burst` in the last `length_s` of each `every_s`."""
        self._usual, self._burst = usual, burst
        self._every_s = every_s
        self._begins_s = every_s - length_s
        """Time in a period at which its burst begins."""
        self._before = usual * self._begins_s
        """Number of arrivals expected in a period before its burst."""
        self._in_period = self._before + burst * length_s

    def expected(self, until_s: float) -> float:
        """Return the expected number of arrivals until a time."""
        periods, into_s = divmod(until_s, self._every_s)
        into = self._usual * min(into_s, self._begins_s)
        into += self._burst * max(0.0, into_s - self._begins_s)
        return periods * self._in_period + into

    def times(self, expected: Floats) -> Floats:
        """Return when so many arrivals are expected."""
        periods, rest = np.divmod(expected, self._in_period)
        # Without a usual rate nothing arrives before the burst; avoid dividing by it.
        before = rest / (self._usual or 1.0)
        within = self._begins_s + (rest - self._before) / self._burst
        into_s = np.where(rest < self._before, before, within)
        return np.asarray(periods * self._every_s + into_s, dtype=np.float64)


BLOCK = 4_096
"""Number of arrivals drawn at once."""

_NEVER_S = 4e9
"""Time that is later than any due time, within 64 bits of nanoseconds."""

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
        """Return the next arrivals due before `before_ns`, at most `at_most` of them, as ascending
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
            # The first arrival is due at the start, not one gap later.
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
