"""This machine's clocks, read as a pair."""

import time

from aiperf_svc.core.control.clock_offset import ClockReading

_RAW = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
"""Clock that is neither set nor slewed, where the system has one (Linux, macOS)."""
_GOOD_NS = 2_000
_ATTEMPTS = 3


def raw_ns() -> int:
    return time.clock_gettime_ns(_RAW)


def read_clocks() -> ClockReading:
    """Return the raw and wall clock at one moment. Reads them several times and returns the closest
    pair, in case a reading was interrupted."""
    best: ClockReading | None = None
    for _ in range(_ATTEMPTS):
        first = raw_ns()
        wall = time.time_ns()
        slack = raw_ns() - first
        if best is None or slack < best.slack_ns:
            best = ClockReading(first + slack // 2, wall, slack)
        if slack < _GOOD_NS:
            break
    assert best is not None
    return best
