"""Defines the time over which a load's rates are counted.

It begins with the phase, not with the first successful request. It ends when sending has stopped
and the last request has ended, whatever its outcome. AIPerf counts from the first start to the last
end of successes, which differs by at most one arrival as long as nothing fails. If most requests
fail, AIPerf's time shrinks to the time of the successes, and their rate looks high.
"""

import msgspec

from aiperf_svc.core.stats.totals import Totals


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the profiling phase by the timing manager's clock."""

    start_wall_ns: int
    stop_wall_ns: int = 0
    """Time at which sending was ended by time or by the user; 0: the credits ran out, even if that
    was before a configured stop."""
    ramp_ns: int = 0


class LoadWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Window of the load's rates. Times are by the timing manager's clock."""

    begin_ns: int
    ramp_ns: int
    stop_ns: int
    """Time at which sending was ended by time or by the user; 0: the credits ran out."""
    sent_until_ns: int
    """End of the load: the stop, or else the start of the last attempted request."""
    end_ns: int
    """The later of the stop and the last end of any attempted request."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def steady_ns(self) -> int:
        """End of the ramp."""
        return self.begin_ns + self.ramp_ns


def load_window(times: PhaseTimes, totals: Totals, *, has_failed: bool) -> LoadWindow:
    """Return the window of a phase. A failed run has no planned stop, so its window ends with its
    last request."""
    stop = times.stop_wall_ns
    if has_failed:
        stop = min(stop, totals.last_end)
    begin = times.start_wall_ns or (totals.first_start if totals.sent else totals.last_end)
    return LoadWindow(
        begin_ns=begin,
        ramp_ns=times.ramp_ns,
        stop_ns=stop,
        sent_until_ns=max(begin, stop or totals.last_tried),
        end_ns=max(begin, stop, totals.last_end),
    )
