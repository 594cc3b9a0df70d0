"""A rate with bursts that come again and again, and when it has produced how many arrivals.

Each period has the usual rate first and ends with the burst. The expected number of arrivals is
linear within each of the two parts, so it and its inverse need no table, however long the load is.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
        """Return the number of arrivals that is expected until a time."""
        periods, into_s = divmod(until_s, self._every_s)
        into = self._usual * min(into_s, self._begins_s)
        into += self._burst * max(0.0, into_s - self._begins_s)
        return periods * self._in_period + into

    def times(self, expected: Floats) -> Floats:
        """Return when so many arrivals are expected."""
        periods, rest = np.divmod(expected, self._in_period)
        # Without a usual rate nothing arrives before the burst, and nothing is divided by it.
        before = rest / (self._usual or 1.0)
        within = self._begins_s + (rest - self._before) / self._burst
        into_s = np.where(rest < self._before, before, within)
        return np.asarray(periods * self._every_s + into_s, dtype=np.float64)
