"""Finds when the bytes of a batch arrived: maps an offset to the timestamp of its read.

An event's time is the kernel's timestamp of the read with the event's last byte. Unread segments
merge into one read and keep only the newest timestamp. So an event that is not the last one in its
read may have arrived earlier, but not before the previous poll (which found nothing to read here)
or the previous read.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.protocol.records import Rows

_NOTHING_MORE: Final = frozenset((b"", b"\r", b"\r\n", b"\n", b"\n\r", b"\n\r\n"))
"""Bytes that may follow an event in a read and still belong to it: the LF of a CRLF, the end of the
chunk."""


class ReadTimes:
    """All reads of a batch. The reads of a fragment are `first` to `first + count - 1`."""

    __slots__ = ("ends", "polled", "stamps")

    def __init__(self, reads: Rows, ends: NDArray[np.int64], counts: Rows | None = None) -> None:
        """Prepare the reads of a batch. `reads` are READ_DTYPE rows, `ends` their exclusive ends
        within the bodies, `counts` the number of reads of each fragment."""
        stamps = reads["stamp_wall_ns"]
        if counts is not None:
            stamps = in_order(stamps, counts)
        # Most reads are never used in Python, so they are not converted to objects here.
        self.ends = ends.data
        self.stamps = np.ascontiguousarray(stamps).data
        self.polled = np.ascontiguousarray(reads["polled_wall_ns"]).data

    def uncertainty_ns(self, data: bytes, end: int, read: int, previous_wall_ns: int) -> int:
        """Return how much earlier than its read's timestamp an event may have arrived that ends at
        offset `end` of the bodies `data`.

        `previous_wall_ns` is the timestamp of the connection's previous read, or the request's
        start.
        """
        left = self.ends[read] - end
        if left <= 3 and data[end : end + left] in _NOTHING_MORE:
            return 0
        polled = self.polled[read]
        latest = previous_wall_ns if previous_wall_ns > polled else polled
        stamp = self.stamps[read]
        return stamp - latest if stamp > latest else 0


def in_order(stamps: Rows, counts: Rows) -> Rows:
    """Return timestamps such that none is later than a following one in the same fragment.

    A read without a kernel timestamp has the event loop's time. Later bytes with earlier timestamps
    may already have been waiting then. They came after the read's own bytes, so their earliest
    timestamp is a better bound. `counts` is the number of reads of each fragment.
    """
    backwards = np.flatnonzero(stamps[1:] < stamps[:-1])
    if not len(backwards):
        return stamps
    ends = np.cumsum(counts, dtype=np.int64)
    # Reads of the next fragment belong to another connection, so there is no order between them.
    fragments = np.searchsorted(ends, backwards, side="right")
    within = np.unique(fragments[backwards + 1 < ends[fragments]])
    if len(within):
        stamps = stamps.copy()
    for fragment in within.tolist():
        own = stamps[int(ends[fragment] - counts[fragment]) : int(ends[fragment])]
        own[:] = np.minimum.accumulate(own[::-1])[::-1]
    return stamps


def ends_of_reads(reads: Rows, counts: Rows, messages: Rows) -> NDArray[np.int64]:
    """Return the ends of reads within the bodies of a batch, where each fragment's error text
    (`messages` bytes) follows its reads (`counts` rows)."""
    ends: NDArray[np.int64] = np.cumsum(reads["length"], dtype=np.int64)
    if messages.any():
        before = np.cumsum(messages, dtype=np.int64) - messages
        ends += np.repeat(before, counts)
    return ends
