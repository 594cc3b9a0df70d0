"""A rate that changes over time, linear between points, and when it has produced how many arrivals.

The expected number of arrivals by time t is the integral of the rate, which is quadratic within a
part. Its inverse maps a process of rate one to one of this rate (time change: Çinlar, Introduction
to Stochastic Processes, 1975, ch. 4.7).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RateCurve:
    """Rates by time in seconds. After the last point nothing arrives."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """`points` are (time, rate) in the order of time; two at one time are a jump."""
        self._times, self._rates = np.array(points, dtype=np.float64).T
        lengths = np.diff(self._times)
        areas = lengths * (self._rates[1:] + self._rates[:-1]) / 2
        self._expected = np.concatenate(([0.0], np.cumsum(areas)))
        """Number of arrivals expected by each point."""

    def expected(self, until_s: float) -> float:
        """Return the number of arrivals that is expected until a time."""
        if until_s >= self._times[-1]:
            return float(self._expected[-1])
        part = max(0, int(np.searchsorted(self._times, until_s, side="right")) - 1)
        into_s = until_s - self._times[part]
        return float(
            self._expected[part] + into_s * (self._rates[part] + self._slope(part) * into_s / 2)
        )

    def times(self, expected: Floats) -> Floats:
        """Return when so many arrivals are expected; infinite for more than there are."""
        part = np.searchsorted(self._expected, expected, side="right") - 1
        is_over = part >= len(self._expected) - 1
        part = np.minimum(part, len(self._expected) - 2)
        rest, rate = expected - self._expected[part], self._rates[part]
        # rate * t + slope * t^2 / 2 = rest, solved so that a slope of zero divides by no zero.
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
