"""A worker's clock all through a run, in a fixed number of estimates.

Clocks that are disciplined do not keep to one line for hours, so the last estimate says little
about the first hour. Estimates are kept at equal distances; whenever there are too many, every
second one goes and the distance doubles.
"""

from aiperf_svc.protocol.messages import ClockEstimate

KEPT = 128
"""In three hours of an estimate each second, one for every minute and a half."""


class ClockHistory:
    """Collects one worker's estimates."""

    def __init__(self, kept: int = KEPT) -> None:
        self._most = kept
        self._kept: list[ClockEstimate] = []
        self._last: ClockEstimate | None = None
        self._stride = 1
        self._skipped = 0

    def add(self, estimate: ClockEstimate) -> None:
        """Take the newest estimate; a repeated one is ignored."""
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
        """In order of time, the newest included."""
        if self._last is None or self._kept[-1] is self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)
