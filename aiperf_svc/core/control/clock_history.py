"""Keeps the history of a worker's clock during a run in a fixed number of estimates.

Disciplined clocks do not follow one straight line for hours, so the last estimate says little about
the first hour. Estimates are kept at equal distances. When there are too many, every second one is
dropped and the distance doubles.
"""

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
