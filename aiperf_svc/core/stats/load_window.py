"""The time over which a load's rates are counted.

It begins with the phase, not with the first request that succeeded, and ends when sending had
stopped and the last request had ended, whatever became of it. AIPerf counts from the first start to
the last end of successes, which is the same to within one arrival as long as nothing fails. When
most requests fail, that time shrinks to the successes' own, and their rate looks high.
"""

import msgspec

from aiperf_svc.core.stats.totals import Totals


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When the profiling phase was, on the timing manager's clock."""

    start_wall_ns: int
    stop_wall_ns: int = 0
    """When sending ended by time or by the user; 0: when the credits ran out, even if that was
    before a time that was asked for too."""
    ramp_ns: int = 0


class LoadWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Times on the timing manager's clock."""

    begin_ns: int
    ramp_ns: int
    stop_ns: int
    """When sending ended by time or by the user; 0: when the credits ran out."""
    end_ns: int
    """The stop or the last end of anything that was tried, whichever is later."""

    @property
    def duration_ns(self) -> int:
        """The length of the window."""
        return self.end_ns - self.begin_ns

    @property
    def steady_ns(self) -> int:
        """The end of the ramp."""
        return self.begin_ns + self.ramp_ns


def load_window(times: PhaseTimes, totals: Totals, *, has_failed: bool) -> LoadWindow:
    """The window of a phase. A run that failed had no planned stop: what happened up to its end is
    all that there was."""
    stop = times.stop_wall_ns
    if has_failed:
        stop = min(stop, totals.last_end)
    begin = times.start_wall_ns or (totals.first_start if totals.sent else totals.last_end)
    return LoadWindow(
        begin_ns=begin,
        ramp_ns=times.ramp_ns,
        stop_ns=stop,
        end_ns=max(begin, stop, totals.last_end),
    )
