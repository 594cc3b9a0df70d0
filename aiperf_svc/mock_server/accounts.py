"""The account of one serving process: counters, and one row per request if enabled.

Times are wall-clock nanoseconds. A request's arrival is the kernel's receive timestamp of the read
with its last byte (if rows are kept). A send time is taken just before the `send` call.
"""

import json
import struct
import time
from array import array
from collections.abc import Iterator
from enum import IntEnum

from aiperf_svc.mock_server.metrics_page import ServedMetrics
from aiperf_svc.mock_server.serving_state import TALLIED, Tally

_time_ns = time.time_ns
_CHUNK = struct.Struct("@qq")


class RowOutcome(IntEnum):
    OPEN = 0
    """The request has not ended."""
    COMPLETED = 1
    """Every byte of a successful response was sent."""
    ERROR = 2
    """Every byte of a response with status 400 or more was sent."""
    CUT = 3
    """The server cut the connection as configured."""
    DISCONNECTED = 4
    """The client left before the end of the response."""


COUNTERS = (
    "requests",
    "completed",
    "errors",
    "cuts",
    "hangs",
    "disconnected",
    "writes",
    "bytes_in",
    "bytes_out",
    "in_flight",
    "max_in_flight",
    "waited",
    "delayed",
    "connections",
    "open_connections",
    "max_open_connections",
    "refused",
    "rejected",
    "unstamped_arrivals",
)
"""Counters of a process. `requests` are the inference requests whose last byte was read; each ends
as one of completed, errors, cuts or disconnected, or is in flight. `hangs` are requests in flight
that will receive nothing more, counted when they start to hang. `waited` found no free slot.
`delayed` had their first token delayed. `writes` are sends of responses. `refused` connections were
closed at once because file descriptors ran out. `rejected` are requests that are not valid HTTP.
"""


class RequestRows:
    """One row per request in compact columns, with at most `limit` rows and `limit` chunk times."""

    __slots__ = (
        "_arrival",
        "_chunks",
        "_connection",
        "_end",
        "_head",
        "_ids",
        "_limit",
        "_outcome",
        "_status",
        "base",
        "chunks_dropped",
        "dropped",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.base = 0
        self._ids: list[bytes | None] = []
        self.clear()

    def clear(self) -> None:
        """Remove every row. Numbers of removed rows remain invalid."""
        self.base += len(self._ids)
        self.dropped = 0
        self.chunks_dropped = 0
        self._ids = []
        self._connection = array("q")
        self._status = array("h")
        self._outcome = array("b")
        self._arrival = array("q")
        self._head = array("q")
        self._end = array("q")
        self._chunks = bytearray()  # row and time of each chunk, 8 bytes each

    def open(
        self, request_id: bytes | None, connection: int, status: int, arrival_wall_ns: int
    ) -> int:
        """Start a row and return its number; -1 if the table is full."""
        ids = self._ids
        row = len(ids)
        if row >= self._limit:
            self.dropped += 1
            return -1
        ids.append(request_id)
        self._connection.append(connection)
        self._status.append(status)
        self._outcome.append(0)
        self._arrival.append(arrival_wall_ns)
        self._head.append(0)
        self._end.append(0)
        return self.base + row

    def sent(self, number: int, is_first: bool, is_chunk: bool, is_last: bool) -> None:
        """Record the time of a write of a response. Call it just before the send, so no timestamp
        is later than what the client sees.

        The first write contains the head, the last one ends the request. A chunk is the write of a
        token or a whole body.
        """
        row = number - self.base
        if row < 0:
            return
        now = _time_ns()
        if is_chunk:
            if len(self._chunks) < self._limit * _CHUNK.size:
                self._chunks += _CHUNK.pack(row, now)
            else:
                self.chunks_dropped += 1
        if is_first:
            self._head[row] = now
        if is_last:
            self._end[row] = now

    def sent_rest(self, number: int) -> None:
        """Move the end of a request whose last write had to wait for the client. Call it before
        each further send.
        """
        row = number - self.base
        if row >= 0:
            self._end[row] = _time_ns()

    def close(self, number: int, outcome: RowOutcome) -> None:
        """Record how a request ended. A request whose last write never started ends now."""
        row = number - self.base
        if row >= 0:
            self._outcome[row] = outcome
            if not self._end[row] or outcome is RowOutcome.DISCONNECTED:
                self._end[row] = _time_ns()

    def intervals(self) -> "tuple[array[int], array[int]]":
        """Return the sorted arrival times and the sorted end times. A request that has not ended
        has no end time."""
        return array("q", sorted(self._arrival)), array("q", sorted(filter(None, self._end)))

    def dumps(self, process: int) -> Iterator[bytes]:
        """Yield each row as a JSON object."""
        chunks: list[list[int] | None] = [None] * len(self._ids)
        for row, stamp in _CHUNK.iter_unpack(self._chunks):
            times = chunks[row]
            if times is None:
                chunks[row] = [stamp]
            else:
                times.append(stamp)
        for row, request_id in enumerate(self._ids):
            times = chunks[row] or []
            yield json.dumps(
                {
                    "request_id": None if request_id is None else request_id.decode("latin-1"),
                    "process": process,
                    "connection": self._connection[row],
                    "status": self._status[row],
                    "outcome": RowOutcome(self._outcome[row]).name.lower(),
                    "arrival_wall_ns": self._arrival[row],
                    "head_wall_ns": self._head[row] or None,
                    "chunk_wall_ns": times,
                    "end_wall_ns": self._end[row] or None,
                }
            ).encode()


class Account(Tally):
    """Counters and rows of one process."""

    __slots__ = (
        *(name for name in COUNTERS if name not in TALLIED),
        "frozen_wall_ns",
        "rows",
        "served",
    )

    def __init__(self, *, row_limit: int | None) -> None:
        self.frozen_wall_ns: tuple[int, int] | None = None
        """Start and end of the freeze in this process, which sent nothing in between."""
        self.rows = None if row_limit is None else RequestRows(row_limit)
        self.served: ServedMetrics | None = None
        """Values that only `GET /metrics` returns; None until the first such request."""
        for name in COUNTERS:
            setattr(self, name, 0)

    errors: int
    cuts: int
    hangs: int
    disconnected: int
    waited: int
    delayed: int
    connections: int
    open_connections: int
    max_open_connections: int
    refused: int
    rejected: int
    unstamped_arrivals: int

    def reset(self) -> None:
        """Restart the account: only what is open still counts, everything else is zero."""
        in_flight, open_connections = self.in_flight, self.open_connections
        for name in COUNTERS:
            setattr(self, name, 0)
        self.in_flight = self.max_in_flight = in_flight
        self.open_connections = self.max_open_connections = open_connections
        self.frozen_wall_ns = None
        if self.rows is not None:
            self.rows.clear()

    def counters(self) -> dict[str, int]:
        """Return every counter by name, and the number of rows that did not fit."""
        values: dict[str, int] = {name: getattr(self, name) for name in COUNTERS}
        rows = self.rows
        values["rows_dropped"] = 0 if rows is None else rows.dropped
        values["chunk_times_dropped"] = 0 if rows is None else rows.chunks_dropped
        return values


def max_overlap(arrivals: list[int], ends: list[int]) -> int:
    """Return the maximum number of intervals that are open at the same time. Both lists are sorted.
    An end at the time of an arrival comes first."""
    max_open = open_now = 0
    position, count = 0, len(ends)
    for arrival in arrivals:
        while position < count and ends[position] <= arrival:
            position += 1
            open_now -= 1
        open_now += 1
        max_open = max(max_open, open_now)
    return max_open
