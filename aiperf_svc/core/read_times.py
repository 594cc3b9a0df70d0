"""When the bytes of a batch came: from an offset to the stamp of the read that holds it.

The rule of the whole project: an event's time is the kernel's stamp of the read that holds the
event's last byte. Segments that wait unread merge into one read and keep only the newest stamp, so
an event that is not the last thing in its read may have come earlier, though not before the
previous poll (which found nothing to read here) nor before the previous read.
"""

from typing import Final

import numpy as np

from aiperf_svc.protocol.records import Rows

_NOTHING_MORE: Final = frozenset((b"", b"\r", b"\r\n", b"\n", b"\n\r", b"\n\r\n"))
"""What may follow an event in a read and still belong to it: the LF of a CRLF, the end of the
chunk."""


class ReadTimes:
    """All reads of a batch. A fragment's reads are `first` to `first + count - 1`."""

    __slots__ = ("ends", "polled", "stamps")

    def __init__(self, reads: Rows, ends: list[int]) -> None:
        """`reads` are READ_DTYPE rows, `ends` their ends, exclusive, within the bodies."""
        self.ends = ends
        self.stamps: list[int] = reads["stamp_wall_ns"].tolist()
        self.polled: list[int] = reads["polled_wall_ns"].tolist()

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


def ends_of_reads(reads: Rows, counts: Rows, messages: Rows) -> list[int]:
    """Ends of reads within the bodies of a batch, in which the error text of each fragment
    (`messages` bytes) follows its reads (`counts` rows)."""
    ends = np.cumsum(reads["length"], dtype=np.int64)
    if messages.any():
        before = np.cumsum(messages, dtype=np.int64) - messages
        ends += np.repeat(before, counts)
    offsets: list[int] = ends.tolist()
    return offsets
