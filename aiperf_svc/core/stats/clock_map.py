"""Converts times of the workers' clocks to the timing manager's, for comparisons between workers.

The duration of a request always uses its worker's clock. Only the duration of the run and the
number in flight over all workers need a common clock.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.protocol.messages.reports import ClockEstimate

Times = NDArray[np.int64]

PIECES = 256
"""Number of equal pieces of the run's time. Within a piece, a worker's offset is linear."""


class ClockMap:
    """Map `timing = worker + offset`, with the offset of each worker rank at that time."""

    def __init__(self, workers: Iterable[tuple[int, Sequence[ClockEstimate]]] = ()) -> None:
        """Build the map from pairs of worker rank and estimates in order of time. Ranks without
        estimates share the timing manager's clock."""
        known = [(rank, estimates) for rank, estimates in workers if estimates]
        self.uncertainty_ns = max((uncertainty_ns(some) for _, some in known), default=0)
        """Largest uncertainty of all workers at any time."""
        self.steps_ns = max((some[-1].steps_ns - some[0].steps_ns for _, some in known), default=0)
        """Sum of the steps of the timing manager's clock, as seen by the worker that saw the
        most."""
        longest = max((some[-1].at_wall_ns - some[0].at_wall_ns for _, some in known), default=0)
        self._piece_ns = max(1, -(-longest // PIECES))
        grid = np.arange(PIECES + 1, dtype=np.int64) * self._piece_ns
        # The last row has no offsets. It is used for all higher ranks.
        size = 2 + max((rank for rank, _ in known), default=0)
        self._begin_ns = np.zeros(size, dtype=np.int64)
        self._offsets_ns = np.zeros((size, PIECES + 1), dtype=np.int64)
        for rank, some in known:
            base, begin = some[0].offset_ns, some[0].at_wall_ns
            self._begin_ns[rank] = begin
            at = np.array([e.at_wall_ns - begin for e in some], dtype=np.float64)
            relative = np.array([e.offset_ns - base for e in some], dtype=np.float64)
            line = np.rint(np.interp(grid.astype(np.float64), at, relative))
            self._offsets_ns[rank] = base + line.astype(np.int64)
        self._is_identity = not self._offsets_ns.any()

    def to_timing(self, wall_ns: NDArray[Any], worker: NDArray[Any]) -> Times:
        """Convert times of the workers' clocks to the timing manager's; 0 (no time) stays 0."""
        if self._is_identity:
            return wall_ns
        rank = np.minimum(worker, len(self._offsets_ns) - 1)
        elapsed = np.maximum(wall_ns - self._begin_ns[rank], 0)
        piece = np.minimum(elapsed // self._piece_ns, PIECES - 1)
        before = self._offsets_ns[rank, piece]
        part = np.minimum((elapsed - piece * self._piece_ns) / self._piece_ns, 1.0)
        change = np.rint(part * (self._offsets_ns[rank, piece + 1] - before)).astype(np.int64)
        return np.where(wall_ns == 0, 0, wall_ns + before + change)


def uncertainty_ns(estimates: Sequence[ClockEstimate]) -> int:
    """Return the maximum error of a worker's offset between its first and last
    estimate.

    Between two estimates the offset is interpolated linearly. If the true offset bends there, the
    error is at most the distance of one of the two from the line through its neighbours. So this
    distance is added to each estimate's own uncertainty.
    """
    worst = max(0 if e.same_host else e.uncertainty_ns for e in estimates)
    for a, b, c in zip(estimates, estimates[1:], estimates[2:], strict=False):
        span = c.at_wall_ns - a.at_wall_ns
        if b.same_host or span <= 0:
            continue
        line = a.offset_ns + (c.offset_ns - a.offset_ns) * (b.at_wall_ns - a.at_wall_ns) / span
        worst = max(worst, b.uncertainty_ns + round(abs(b.offset_ns - line)))
    return worst
