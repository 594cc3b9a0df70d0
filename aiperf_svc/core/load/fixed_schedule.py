"""The schedule of a replay: each request is due at the time of its row in a trace."""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.load import Load
from aiperf_svc.domain.errors import DatasetError

MAX_DUE_S = 4e9
"""Maximum due time of a row, so that nanoseconds, also added to dates, fit into 64 bits."""

Times = NDArray[np.int64]


class FixedSchedule:
    """The due times of one phase, in order, as nanoseconds from its start."""

    def __init__(self, due_ns: Times) -> None:
        """`due_ns` are ascending."""
        self._due_ns = due_ns
        self._taken = 0

    def take(self, *, before_ns: int, at_most: int | None = None) -> Times:
        """Return the next times before `before_ns`, at most `at_most` of them."""
        first = self._taken
        self._taken = int(np.searchsorted(self._due_ns, before_ns, side="left"))
        if at_most is not None:
            self._taken = min(self._taken, first + at_most)
        return self._due_ns[first : self._taken]

    def planned(self, *, credits: int | None, before_ns: int | None) -> tuple[int, float]:
        """Return how many of the first `credits` times are before `before_ns` (None: all), and
        their number per second, over the gaps between them or until `before_ns`. The rate is 0 if
        they take no time."""
        due_ns = self._due_ns[:credits]
        if before_ns is not None:
            count = int(np.searchsorted(due_ns, before_ns, side="left"))
            return count, count * 1e9 / before_ns if before_ns > 0 else 0.0
        span_ns = int(due_ns[-1] - due_ns[0]) if len(due_ns) else 0
        return len(due_ns), (len(due_ns) - 1) * 1e9 / span_ns if span_ns else 0.0


def due_times(times_s: NDArray[np.float64], load: Load) -> Times:
    """Return when rows with these trace times are due, from the start of the load. Raises
    DatasetError for times beyond the range of the clock."""
    zero_s = 0.0
    if load.fixed_schedule_start_offset is not None:
        zero_s = load.fixed_schedule_start_offset / 1e9
    elif load.fixed_schedule_auto_offset is not False and len(times_s):
        zero_s = float(times_s[0])
    due_s = (times_s - zero_s) / load.replay_speedup
    if len(due_s) and due_s.max() > MAX_DUE_S:
        raise DatasetError(
            f"a row of the trace is due {due_s.max():.3g} s after the start, which is over "
            f"{MAX_DUE_S:.0e} s; expected times in the unit of the trace's format"
        )
    return np.rint(due_s * 1e9).astype(np.int64)
