"""From the workers' clocks to the timing manager's, for what is compared between workers.

The duration of a request never leaves its worker's clock. Only the duration of the run and the
number in flight over all workers need one clock.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.protocol.messages import ClockEstimate

Times = NDArray[np.int64]


class ClockMap:
    """`timing = worker + offset + drift x (worker - reference)`, a line for each worker rank."""

    def __init__(self, estimates: Iterable[tuple[int, ClockEstimate, int]] = ()) -> None:
        """Triples of worker rank, estimate, and the worker's own time at which the offset holds (0:
        unknown, the drift is then left out). Ranks that are not named share the timing manager's
        clock."""
        known = list(estimates)
        size = 1 + max((rank for rank, _, _ in known), default=0)
        self._offset_ns = np.zeros(size, dtype=np.int64)
        self._drift = np.zeros(size, dtype=np.float64)
        self._reference_ns = np.zeros(size, dtype=np.int64)
        self.uncertainty_ns = 0
        """Largest of all workers."""
        for rank, estimate, reference_wall_ns in known:
            self._offset_ns[rank] = estimate.offset_ns
            if reference_wall_ns:
                self._drift[rank] = estimate.drift_ppm * 1e-6
                self._reference_ns[rank] = reference_wall_ns
            if not estimate.same_host:
                self.uncertainty_ns = max(self.uncertainty_ns, estimate.uncertainty_ns)
        self._has_drift = bool(self._drift.any())
        self._is_identity = not self._offset_ns.any() and not self._has_drift

    def to_timing(self, wall_ns: NDArray[Any], worker: NDArray[Any]) -> Times:
        """Times of the workers' clocks on the timing manager's; 0 (no time) stays 0."""
        if self._is_identity:
            return wall_ns
        rank = np.where(worker < len(self._offset_ns), worker, 0)
        shift = self._offset_ns[rank]
        if self._has_drift:
            elapsed = (wall_ns - self._reference_ns[rank]).astype(np.float64)
            shift = shift + np.rint(elapsed * self._drift[rank]).astype(np.int64)
        return np.where(wall_ns == 0, 0, wall_ns + shift)
