"""Finds the steady part of a load by the rule in its config.

By shares of time, the window is the time of sending without a part at its beginning and its end. By
concurrency, it is the longest span in which the number in flight never fell below a share of its
peak for longer than the refill of a slot takes.
"""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.load_shapes import SteadyState
from aiperf_svc.core.stats.load_window import LoadWindow

Times = NDArray[np.int64]
_REFILL_NS = 10_000_000
"""Longest time below the share that does not interrupt the span: responses that end together are
followed by the next requests of their users within it."""


def steady_window(
    rule: SteadyState, window: LoadWindow, starts: Times, ends: Times
) -> tuple[int, int]:
    """Return the begin and the end of the steady part. `starts` and `ends` are those of all
    requests that were sent, in any order."""
    if rule.concurrency is not None:
        return _busiest_span(rule.concurrency, starts, ends)
    length = window.sent_until_ns - window.begin_ns
    begin = window.begin_ns + round(length * rule.skip_start)
    return begin, window.sent_until_ns - round(length * rule.skip_end)


def _busiest_span(share: float, starts: Times, ends: Times) -> tuple[int, int]:
    if not len(starts):
        return 0, 0
    times = np.concatenate((starts, ends))
    steps = np.concatenate((np.ones(len(starts), np.int64), np.full(len(ends), -1, np.int64)))
    # At the same instant, ends come before starts: a slot that is refilled at once counts once.
    order = np.lexsort((steps, times))
    times, level = times[order], np.cumsum(steps[order])
    is_busy = np.concatenate(([False], level >= share * level.max(), [False]))
    edges = np.flatnonzero(np.diff(is_busy.astype(np.int8)))
    begins, last = times[edges[::2]], times[np.minimum(edges[1::2], len(times) - 1)]
    is_break = begins[1:] - last[:-1] > _REFILL_NS
    begins = np.concatenate((begins[:1], begins[1:][is_break]))
    last = np.concatenate((last[:-1][is_break], last[-1:]))
    longest = int(np.argmax(last - begins))
    return int(begins[longest]), int(last[longest])
