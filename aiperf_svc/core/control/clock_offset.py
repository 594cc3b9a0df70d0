"""Estimates the offset between the wall clocks of two machines, and its uncertainty.

Wall clocks are set and slewed, at any time and by any amount. The raw clock of a machine only
drifts. So the offset between the raw clocks is tracked (`core.control.offset_interval`), where the
drift is bounded, and each end compares its wall clock with its raw clock. A step of the wall clock
is therefore seen at once at this end, and with the next probe at the other.

Disciplined clocks do not follow one straight line for hours, so the last estimate says little about
the first hour. `ClockHistory` keeps estimates at equal distances. When there are too many, every
second one is dropped and the distance doubles.
"""

from typing import NamedTuple

from aiperf_svc.core.control.offset_interval import OffsetInterval
from aiperf_svc.protocol.messages.reports import ClockEstimate

KEPT = 128
"""Most estimates kept: in three hours, one for every minute and a half."""


class ClockHistory:
    """Collects the estimates of one worker's clock."""

    def __init__(self, kept: int = KEPT) -> None:
        self._most = kept
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
        if len(self._kept) > self._most:
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
LEAST_STEP_NS = 1_000_000
"""Difference beyond slewing from which the clock counts as having been set."""


class ClockReading(NamedTuple):
    """Readings of a machine's two clocks at one moment."""

    raw_ns: int
    wall_ns: int
    slack_ns: int = 0
    """Time within which the two clocks were read."""


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
        """Record that both ends run on one kernel and share a clock: the offset is exactly zero."""
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
            if abs(moved) > slewed + LEAST_STEP_NS + reference.slack_ns + before.slack_ns:
                self._steps_ns += abs(moved)
        self._reference, self._sent_raw_ns = reference, sent_raw_ns
        self._interval.add(sent_raw_ns, received_raw_ns, reference.raw_ns, local.raw_ns)
        self.latest = self.at(local)

    @property
    def is_known(self) -> bool:
        """True if `at` can give an estimate."""
        return self._is_same_host or self._reference is not None

    def at(self, local: ClockReading) -> ClockEstimate:
        """Return the estimate for a moment after the last response. The true offset is within the
        uncertainty, unless the other wall clock has been set since that response."""
        if self._is_same_host:
            return ClockEstimate(same_host=True)
        if self._reference is None:
            return ClockEstimate(uncertainty_ns=2**62)
        reference = self._reference
        low, high = self._interval.at(local.raw_ns)
        middle = (low + high) // 2
        apart = (reference.wall_ns - reference.raw_ns) - (local.wall_ns - local.raw_ns)
        # The response left after the probe did, so its reading is no older than the probe.
        slewed = int(MAX_SLEW * (local.raw_ns - self._sent_raw_ns))
        return ClockEstimate(
            offset_ns=middle + apart,
            uncertainty_ns=high - middle + slewed + reference.slack_ns + local.slack_ns + 1,
            at_wall_ns=local.wall_ns,
            steps_ns=self._steps_ns + self._interval.contradicted_ns,
        )
