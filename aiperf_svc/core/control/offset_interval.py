"""Computes guaranteed bounds of the offset between two free-running clocks, from single probes.

A probe leaves at t1, arrives at t2, its response leaves at t3 and arrives at t4. Delays are never
negative, so the offset `reference - local` lies between t3 - t4 and t2 - t1, whatever the two
delays are. The offset changes between probes, so the bounds widen with time, and each probe narrows
them: a fast one by much, a slow one by little.

How fast the bounds widen depends on how well the difference of the clocks' rates is known. At first
the worst case of oscillators is assumed. Bounds that are minutes apart then bound the rate as well.
"""

from collections import deque
from math import ceil

MAX_RATE = 200e-6
"""Largest difference of the rates of two clocks: two oscillators of 100 ppm each, the worst in
computers."""
MAX_WANDER = 1e-7 / 1e9
"""Largest change of the rate per nanosecond: 0.1 ppm per second. A crystal changes by about 1 ppm
per kelvin, and a machine's temperature by a few kelvins per minute."""
ANCHOR_NS = 10 * 10**9
ANCHORS = 32
"""Number of earlier bounds kept to bound the rate, five minutes in all. Older ones help less, since
the rate may have changed."""


class OffsetInterval:
    """Bounds of `reference - local` in nanoseconds, in a few hundred bytes for any number of
    probes."""

    def __init__(self) -> None:
        self.is_known = False
        self.contradicted_ns = 0
        """Sum of the distances by which probes left the bounds. It is above 0 only if a clock was
        set."""
        self._at = 0
        self._low = 0
        self._high = 0
        self._slowest = -MAX_RATE
        self._fastest = MAX_RATE
        self._anchors: deque[tuple[int, int, int]] = deque(maxlen=ANCHORS)

    def add(self, t1: int, t2: int, t3: int, t4: int) -> None:
        """Add one exchange: t1 and t4 by the local clock, t2 and t3 by the reference's."""
        # The bound at t1 is widened to hold at t4.
        high = t2 - t1 + ceil(MAX_RATE * (t4 - t1))
        low = min(t3 - t4, high)
        if self.is_known:
            self._advance(t4)
            gap = max(low - self._high, self._low - high)
            if gap > 0:
                self.contradicted_ns += gap
                self.is_known = False
        if self.is_known:
            self._low, self._high = max(low, self._low), min(high, self._high)
            self._learn_rate()
        else:
            self._low, self._high = low, high
            self._forget_rate()
        self._at, self.is_known = t4, True
        if not self._anchors or t4 - self._anchors[-1][0] >= ANCHOR_NS:
            self._anchors.append((t4, self._low, self._high))

    def at(self, local_ns: int) -> tuple[int, int]:
        """Return the lowest and highest offset at a local time after the last probe."""
        elapsed = max(0, local_ns - self._at)
        slowest, fastest = self._rates(elapsed)
        return self._low + int(slowest * elapsed) - 1, self._high + int(fastest * elapsed) + 1

    @property
    def rate(self) -> float:
        """Return how much faster the reference runs, in the middle of the possible range."""
        return (self._slowest + self._fastest) / 2

    def _rates(self, elapsed: int) -> tuple[float, float]:
        wander = MAX_WANDER * elapsed
        return max(-MAX_RATE, self._slowest - wander), min(MAX_RATE, self._fastest + wander)

    def _advance(self, local_ns: int) -> None:
        self._low, self._high = self.at(local_ns)
        self._slowest, self._fastest = self._rates(local_ns - self._at)
        self._at = local_ns

    def _learn_rate(self) -> None:
        slowest, fastest = self._slowest, self._fastest
        now, lowest, highest = self._at, self._low, self._high
        for at, low, high in self._anchors:
            elapsed = now - at
            if elapsed <= 0:
                continue
            # The mean rate since then and the rate at this moment differ by half of the wander.
            wander = MAX_WANDER * elapsed / 2
            # Comparisons: `max` and `min` would take most of the time of a probe.
            least = (lowest - high) / elapsed - wander
            if least > slowest:
                slowest = least
            most = (highest - low) / elapsed + wander
            if most < fastest:
                fastest = most
        self._slowest, self._fastest = slowest, fastest
        if slowest > fastest:
            self._forget_rate()

    def _forget_rate(self) -> None:
        self._slowest, self._fastest = -MAX_RATE, MAX_RATE
        self._anchors.clear()
