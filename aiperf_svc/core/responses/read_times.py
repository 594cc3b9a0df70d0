"""When the bytes of a batch came: from an offset to the stamp of the read that holds it.

The rule of the whole project: an event's time is the kernel's stamp of the read that holds the
event's last byte. Segments that wait unread merge into one read and keep only the newest stamp, so
an event that is not the last thing in its read may have come earlier, though not before the
previous poll (which found nothing to read here) nor before the previous read.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.protocol.records import Rows

_NOTHING_MORE: Final = frozenset((b"", b"\r", b"\r\n", b"\n", b"\n\r", b"\n\r\n"))
"""What may follow an event in a read and still belong to it: the LF of a CRLF, the end of the
chunk."""


class ReadTimes:
    """All reads of a batch. A fragment's reads are `first` to `first + count - 1`."""

    __slots__ = ("ends", "polled", "stamps")

    def __init__(self, reads: Rows, ends: NDArray[np.int64], counts: Rows | None = None) -> None:
        """`reads` are READ_DTYPE rows, `ends` their ends, exclusive, within the bodies, `counts`
        the reads of each fragment."""
        stamps = reads["stamp_wall_ns"]
        if counts is not None:
            stamps = in_order(stamps, counts)
        # Of most reads nothing is asked in Python, so none of them becomes an object here.
        self.ends = ends.data
        self.stamps = np.ascontiguousarray(stamps).data
        self.polled = np.ascontiguousarray(reads["polled_wall_ns"]).data

    def uncertainty_ns(self, data: bytes, end: int, read: int, previous_wall_ns: int) -> int:
        """How much earlier than its read's stamp something that ends at offset `end` of the bodies
        `data` may have come.

        `previous_wall_ns` is the stamp of the connection's read before, or the request's start.
        """
        left = self.ends[read] - end
        if left <= 3 and data[end : end + left] in _NOTHING_MORE:
            return 0
        polled = self.polled[read]
        latest = previous_wall_ns if previous_wall_ns > polled else polled
        stamp = self.stamps[read]
        return stamp - latest if stamp > latest else 0


def in_order(stamps: Rows, counts: Rows) -> Rows:
    """Stamps of which none is later than one that follows it in the same fragment.

    A read without a kernel stamp has the loop's time, at which later bytes may have been waiting
    with earlier stamps of their own. They came after its own bytes: the earliest of them is the
    better bound. `counts` are the reads of each fragment.
    """
    backwards = np.flatnonzero(stamps[1:] < stamps[:-1])
    if not len(backwards):
        return stamps
    ends = np.cumsum(counts, dtype=np.int64)
    # Where a fragment ends another connection's reads begin: those are in no order.
    fragments = np.searchsorted(ends, backwards, side="right")
    within = np.unique(fragments[backwards + 1 < ends[fragments]])
    if len(within):
        stamps = stamps.copy()
    for fragment in within.tolist():
        own = stamps[int(ends[fragment] - counts[fragment]) : int(ends[fragment])]
        own[:] = np.minimum.accumulate(own[::-1])[::-1]
    return stamps


def ends_of_reads(reads: Rows, counts: Rows, messages: Rows) -> NDArray[np.int64]:
    """Ends of reads within the bodies of a batch, in which the error text of each fragment
    (`messages` bytes) follows its reads (`counts` rows)."""
    ends: NDArray[np.int64] = np.cumsum(reads["length"], dtype=np.int64)
    if messages.any():
        before = np.cumsum(messages, dtype=np.int64) - messages
        ends += np.repeat(before, counts)
    return ends
