"""How long a server needs to recover from a disturbance, from counts of requests by second.

Requests are counted in the second in which they were due, so that a server that answers nothing is
not shown fewer requests. Second 0 begins with the disturbance. A share of the requests that were
due, and not a rate, is compared with the one before: it does not change with random arrivals or
with stages of the load, and at a constant rate it is the same comparison.
"""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

WINDOW_S = 10
"""Length of the window over which a share is taken: one second has too few requests."""
HOLD_S = 30
"""Time for which the share must hold: the end of a queue is no recovery if the next one follows."""
BASELINE_S = 60
"""Longest time before a disturbance that it is compared with."""
RECOVERED_SHARE = 0.95
"""Share of the baseline that counts as recovered."""
_ROUNDING = 1e-9


def recovered_second(good: Counts, due: Counts, *, least: float) -> int | None:
    """Return the first second after which the share of good requests stays at `least` or above.

    It is the lowest s for which every window of `WINDOW_S` seconds within [s, s + `HOLD_S`) has
    `good >= least * due`. A window without a request holds. None: there is no such second, or fewer
    than `HOLD_S` seconds follow it.
    """
    if len(due) < HOLD_S:
        return None
    excess = np.concatenate([[0.0], np.cumsum(good - least * due)])
    holds = excess[WINDOW_S:] - excess[:-WINDOW_S] >= -_ROUNDING * max(1, int(due.sum()))
    # A run of so many windows fills the time that it must hold.
    needed = HOLD_S - WINDOW_S + 1
    held = np.concatenate([[0], np.cumsum(holds)])
    found = np.flatnonzero(held[needed:] - held[:-needed] == needed)
    return int(found[0]) if len(found) else None


def debt(beyond: int, due: int, *, usual_share: float, rate: float) -> tuple[float, float]:
    """Return the SLO debt: the requests beyond the SLO that the share of the baseline does not
    explain, and the seconds in which the baseline's rate makes so many due.

    `beyond` of `due` requests missed the SLO, `usual_share` of those before.
    """
    requests = max(0.0, beyond - usual_share * due)
    return requests, requests / rate if rate else 0.0


def longest_gap(moments: NDArray[np.int64], *, begin: int, end: int) -> int:
    """Return the longest time without a moment that overlaps [begin, end), in their unit.

    `moments` are in no particular order. A gap may begin before `begin`; one that is open at `end`
    ends there. Without a moment before, the first gap begins with `begin`.
    """
    ordered = np.sort(moments[moments < end])
    place = int(np.searchsorted(ordered, begin, side="right"))
    first = ordered[place - 1] if place else begin
    edges = np.concatenate([[first], ordered[place:], [end]])
    return int(np.diff(edges).max())
