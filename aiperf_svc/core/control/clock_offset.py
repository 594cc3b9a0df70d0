"""How far one machine's wall clock is from another's, and how far that may be wrong.

Wall clocks are set and slewed, at any time and by any amount. The raw clock of a machine is not:
it only drifts. So the offset is followed between the raw clocks (`core.control.offset_interval`),
where bounds on the drift hold, and each end reads how its wall clock stands to its raw clock. A
wall clock that is set is therefore seen at once at this end, and with the next probe at the other.
"""

from typing import NamedTuple

from aiperf_svc.core.control.offset_interval import OffsetInterval
from aiperf_svc.protocol.messages import ClockEstimate

MAX_SLEW = 500e-6
"""Fastest usual slewing of a wall clock (Linux's kernel discipline, ntpd; RFC 5905). The other
end's wall clock is known as of its last response and may have been slewed since."""
LEAST_STEP_NS = 1_000_000
"""What is beyond slewing by this much is a clock that was set."""


class ClockReading(NamedTuple):
    """A machine's two clocks at one moment."""

    raw_ns: int
    wall_ns: int
    slack_ns: int = 0
    """The two were read within this time of each other."""


class ClockOffset:
    """Estimates `reference = local + offset` between wall clocks from probes."""

    def __init__(self) -> None:
        self.latest = ClockEstimate()
        """The estimate at the arrival of the last response, where it is best."""
        self._interval = OffsetInterval()
        self._reference: ClockReading | None = None
        self._sent_raw_ns = 0
        self._steps_ns = 0
        self._is_same_host = False

    def same_host(self) -> None:
        """Both ends run on one kernel, hence on one clock: the offset is zero, exactly."""
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
        """Take one exchange: sent by the local raw clock, received by the reference's, `reference`
        read when the response left and `local` when it arrived."""
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
        """Whether `at` has anything to go by."""
        return self._is_same_host or self._reference is not None

    def at(self, local: ClockReading) -> ClockEstimate:
        """The estimate for a moment after the last response. The true offset is within the
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
