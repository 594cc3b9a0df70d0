"""Estimates the offset between the wall clocks of two machines, and its uncertainty.

Wall clocks can be set and slewed at any time by any amount. The raw clock of a machine only drifts.
So `OffsetInterval` tracks the offset between the raw clocks, whose drift is bounded, and each end
compares its wall clock with its raw clock. A step of the wall clock is therefore detected at once
at this end, and with the next probe at the other end.

The offset of disciplined clocks is not linear over hours, so the last estimate does not describe
the first hour. `ClockHistory` keeps estimates at equal distances. When there are too many, it drops
every second one and doubles the distance.

`OffsetInterval` computes guaranteed bounds of the offset between two free-running clocks from
single probes. A probe leaves at t1 and arrives at t2; its response leaves at t3 and arrives at t4.
Delays are never negative, so the offset `reference - local` lies between t3 - t4 and t2 - t1,
whatever the two delays are. The offset changes between probes, so the bounds widen with time, and
each probe narrows them. Fast probes narrow them most.

The bounds widen as fast as the uncertainty of the clocks' rate difference allows. At first that is
the worst case of oscillators. Bounds that are minutes apart then also bound the rate.
"""

from collections import deque
from math import ceil
from typing import NamedTuple

from aiperf_svc.protocol.messages.reports import ClockEstimate

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
        """Sum of the distances by which probes fell outside the bounds. It is above 0 only if a
        clock was set."""
        self._at = 0
        self._low = 0
        self._high = 0
        self._slowest = -MAX_RATE
        self._fastest = MAX_RATE
        self._anchors: deque[tuple[int, int, int]] = deque(maxlen=ANCHORS)

    def add(self, t1: int, t2: int, t3: int, t4: int) -> None:
        """Add one exchange: t1 and t4 by the local clock, t2 and t3 by the reference's."""
        # The bound at t1 is widened so that it holds at t4.
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
        """Return by how much the reference runs faster, as the middle of the possible range."""
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
            # The mean rate since then and the current rate differ by half of the wander.
            wander = MAX_WANDER * elapsed / 2
            # Comparisons, because `max` and `min` would take most of a probe's time.
            lowest_rate = (lowest - high) / elapsed - wander
            if lowest_rate > slowest:
                slowest = lowest_rate
            highest_rate = (highest - low) / elapsed + wander
            if highest_rate < fastest:
                fastest = highest_rate
        self._slowest, self._fastest = slowest, fastest
        if slowest > fastest:
            self._forget_rate()

    def _forget_rate(self) -> None:
        self._slowest, self._fastest = -MAX_RATE, MAX_RATE
        self._anchors.clear()


KEPT = 128
"""Maximum number of estimates kept: in three hours, one for every minute and a half."""


class ClockHistory:
    """Collects the estimates of one worker's clock."""

    def __init__(self) -> None:
        self._kept: list[ClockEstimate] = []
        self._last: ClockEstimate | None = None
        self._stride = 1
        self._skipped = 0

    def add(self, estimate: ClockEstimate) -> None:
        """Add the newest estimate; a repeated one is ignored."""
        if estimate == self._last:
            return
        self._last = estimate
        if self._kept and self._skipped + 1 < self._stride:
            self._skipped += 1
            return
        self._skipped = 0
        self._kept.append(estimate)
        if len(self._kept) > KEPT:
            del self._kept[1::2]
            self._stride *= 2

    @property
    def estimates(self) -> tuple[ClockEstimate, ...]:
        """Return the estimates in order of time, including the newest."""
        if self._last is None or self._kept[-1] is self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)


MAX_SLEW = 500e-6
"""Fastest usual slewing of a wall clock (Linux's kernel discipline, ntpd; RFC 5905). The other
end's wall clock is known at its last response and may have been slewed since."""
MIN_STEP_NS = 1_000_000
"""Minimum difference, beyond slewing, that counts as setting the clock."""


class ClockReading(NamedTuple):
    """Readings of a machine's two clocks at one moment."""

    raw_ns: int
    wall_ns: int
    slack_ns: int = 0
    """Maximum time between the two readings."""


class ClockOffset:
    """Estimates `reference = local + offset` between wall clocks from probes."""

    def __init__(self) -> None:
        self.latest = ClockEstimate()
        """Estimate at the arrival of the last response, when it is most exact."""
        self._interval = OffsetInterval()
        self._reference: ClockReading | None = None
        self._sent_raw_ns = 0
        self._steps_ns = 0
        self._is_same_host = False

    def same_host(self) -> None:
        """Record that both ends share a kernel and thus a clock: the offset is exactly zero."""
        self._is_same_host = True
        self.latest = ClockEstimate(same_host=True)

    def add(
        self,
        *,
        sent_raw_ns: int,
        received_raw_ns: int,
        reference: ClockReading,
        local: ClockReading,
    ) -> None:
        """Add one exchange. The probe was sent by the local raw clock and received by the
        reference's; `reference` was read when the response left and `local` when it arrived."""
        before = self._reference
        if before is not None:
            moved = (reference.wall_ns - reference.raw_ns) - (before.wall_ns - before.raw_ns)
            slewed = MAX_SLEW * (reference.raw_ns - before.raw_ns)
            if abs(moved) > slewed + MIN_STEP_NS + reference.slack_ns + before.slack_ns:
                self._steps_ns += abs(moved)
        self._reference, self._sent_raw_ns = reference, sent_raw_ns
        self._interval.add(sent_raw_ns, received_raw_ns, reference.raw_ns, local.raw_ns)
        self.latest = self.at(local)

    @property
    def is_known(self) -> bool:
        """True if `at` can give an estimate."""
        return self._is_same_host or self._reference is not None

    def at(self, local: ClockReading) -> ClockEstimate:
        """Return the estimate for a time after the last response. The true offset is within the
        uncertainty, unless the other wall clock was set since that response."""
        if self._is_same_host:
            return ClockEstimate(same_host=True)
        if self._reference is None:
            return ClockEstimate(uncertainty_ns=2**62)
        reference = self._reference
        low, high = self._interval.at(local.raw_ns)
        middle = (low + high) // 2
        apart = (reference.wall_ns - reference.raw_ns) - (local.wall_ns - local.raw_ns)
        # The response left after the probe, so its reading is no older than the probe.
        slewed = int(MAX_SLEW * (local.raw_ns - self._sent_raw_ns))
        return ClockEstimate(
            offset_ns=middle + apart,
            uncertainty_ns=high - middle + slewed + reference.slack_ns + local.slack_ns + 1,
            at_wall_ns=local.wall_ns,
            steps_ns=self._steps_ns + self._interval.contradicted_ns,
        )
