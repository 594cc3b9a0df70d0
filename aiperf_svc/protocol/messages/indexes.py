"""Messages between the indexes of Jobs and the collector of their results. An index waits for the
response to each message and resends the message if none comes. So every message may arrive twice:
a part of a file has its offset, and the end lists all files.
"""

from aiperf_svc.protocol.messages.base import Message, Value

STOPPED = "its pod was stopped"
"""Reason of an attempt that was stopped from outside; the status of its pod has the cause."""


class IndexFile(Value, frozen=True):
    """A file of an index, by its path below the index's folder."""

    name: str
    size: int
    sha256: str


class IndexBegun(Message, frozen=True):
    """An index begins. Files of an earlier attempt are dropped."""

    shape: int
    """Number of the shape that it runs, among those of the experiment."""


class IndexFilePart(Message, frozen=True):
    shape: int
    name: str
    offset: int
    """Bytes of the file before these."""
    data: bytes


class IndexEnded(Message, frozen=True):
    """An index has ended. The collector accepts its files if it has all of them."""

    shape: int
    reason: str
    """Why it failed, or why files of its trials are missing; empty if neither."""
    is_tried_again: bool
    """Whether another attempt may follow and replace these results."""
    files: tuple[IndexFile, ...]


class CollectorReply(Message, frozen=True):
    """Response to any of these messages."""

    have: int = 0
    """Bytes of the file that the collector has."""
    problem: str = ""
    """Why the collector refused the message; empty if it accepted it."""
