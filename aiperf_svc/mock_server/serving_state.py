"""The state of connections and accounts that the innermost steps of a serving process
(`quick_serving`) read and write.

Where the compiled steps are, so are these, with fields that C reads as its own; else they are plain
objects. Both have the same attributes.
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
    """-1 once closed."""
    reply: Reply | None
    """The reply on its way."""
    step: int
    """Its next write."""
    due_ns: int
    """Time at which that write is due (monotonic); while the last one is being sent, its time."""
    row: int
    """The number of its row, if rows are kept."""
    inbuf: bytearray | None
    """A request that is not complete, or one that came during a reply."""


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
