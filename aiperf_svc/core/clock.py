"""How far one machine's clock is from another's, from exchanges of four timestamps.

The method is NTP's (RFC 5905, section 8): a probe leaves at t1, arrives at t2, its answer leaves
at t3 and arrives at t4; the offset is ((t2 - t1) + (t3 - t4)) / 2 and is wrong by at most half of
the delay (t4 - t1) - (t3 - t2). Delay is what queues add, so the probes with the least of it say
the most. A straight line through those gives the drift: 20 ppm, usual between machines, is 6 ms in
five minutes.
"""

from collections import deque

import numpy as np

from aiperf_svc.protocol.messages import ClockEstimate

KEPT_PROBES = 512
"""Probes that are remembered; at one a second, the last eight minutes."""
SEGMENTS = 8
"""The line goes through the quickest probe of each of so many equal pieces of time."""


class ClockOffset:
    """Estimates `reference = local + offset` from probes."""

    def __init__(self) -> None:
        self._probes: deque[tuple[int, int, int]] = deque(maxlen=KEPT_PROBES)
        self._is_same_host = False

    def same_host(self) -> None:
        """Both ends run on one kernel, hence on one clock: the offset is zero, exactly."""
        self._is_same_host = True

    def add(self, t1: int, t2: int, t3: int, t4: int) -> None:
        """Take one exchange: t1, t4 by the local clock, t2, t3 by the reference's, in
        nanoseconds."""
        delay = max(0, (t4 - t1) - (t3 - t2))
        self._probes.append((t4, ((t2 - t1) + (t3 - t4)) // 2, delay))

    @property
    def is_known(self) -> bool:
        """Whether `at` has anything to go by."""
        return self._is_same_host or bool(self._probes)

    def at(self, local_wall_ns: int) -> ClockEstimate:
        """The estimate for a local time."""
        if self._is_same_host:
            return ClockEstimate(same_host=True)
        if not self._probes:
            return ClockEstimate(uncertainty_ns=2**62)
        best = self._quickest()
        least = min(best, key=lambda probe: probe[2])
        if len(best) < 3:
            return ClockEstimate(offset_ns=least[1], uncertainty_ns=least[2] // 2)
        origin, base = best[0][0], best[0][1]
        when = np.array([t - origin for t, _, _ in best], dtype=np.float64) / 1e9
        offsets = np.array([o - base for _, o, _ in best], dtype=np.float64)
        weights = 1.0 / (1.0 + np.array([d for _, _, d in best], dtype=np.float64))
        slope, intercept = np.polyfit(when, offsets, 1, w=weights)
        here = (local_wall_ns - origin) / 1e9
        return ClockEstimate(
            offset_ns=base + round(float(intercept + slope * here)),
            uncertainty_ns=least[2] // 2,
            drift_ppm=float(slope) / 1e3,
        )

    def _quickest(self) -> list[tuple[int, int, int]]:
        probes = list(self._probes)
        if len(probes) < SEGMENTS * 2:
            return [min(probes, key=lambda probe: probe[2])]
        size = len(probes) // SEGMENTS
        pieces = [probes[i * size : (i + 1) * size] for i in range(SEGMENTS)]
        return [min(piece, key=lambda probe: probe[2]) for piece in pieces]
