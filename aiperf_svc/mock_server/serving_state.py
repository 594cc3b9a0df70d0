"""The state of connections and accounts that the innermost steps of a serving process
(`quick_serving`) read and write.

With the compiled steps these are C types with C fields; otherwise they are plain objects. Both have
the same attributes.
"""

from typing import TYPE_CHECKING

from aiperf_svc.mock_server.replies import Reply

try:
    from aiperf_svc.mock_server import _quick_serving as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there


class PlainConnectionState:
    __slots__ = ("due_ns", "fd", "inbuf", "reply", "row", "step")

    fd: int
    """-1 when closed."""
    reply: Reply | None
    """The reply in progress."""
    step: int
    """Its next write."""
    due_ns: int
    """Due time of that write (monotonic); while the last write is being sent, its due time."""
    row: int
    """Number of its row, if rows are kept."""
    inbuf: bytearray | None
    """An incomplete request, or one that arrived during a reply."""


class PlainTally:
    """The counters that change with every request."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "completed",
        "in_flight",
        "max_in_flight",
        "requests",
        "writes",
    )

    requests: int
    completed: int
    writes: int
    bytes_in: int
    bytes_out: int
    in_flight: int
    max_in_flight: int


if TYPE_CHECKING or compiled is None:
    ConnectionState = PlainConnectionState
    Tally = PlainTally
else:
    ConnectionState = compiled.Connection
    Tally = compiled.Tally

TALLIED = PlainTally.__slots__
"""Names of a tally's counters."""
