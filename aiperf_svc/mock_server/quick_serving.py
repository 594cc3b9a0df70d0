"""The two innermost steps of a serving process: a complete request whose response is one send, and
the next token of a stream.

They run a hundred thousand times per second. Nearly all need no decision: the request has been seen
before, or the token is sent completely and the next one is due a fixed time later. These cases are
also implemented in C (`_quick_serving.c`), which is used if it has been compiled. It hands
everything else back to server and sender, so only they interpret requests and writes. Without it,
the code here sends the tokens, and they do everything else.
"""

import select
import socket
import ssl
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from aiperf_svc.mock_server.accounts import RequestRows
from aiperf_svc.mock_server.connections import Connection
from aiperf_svc.mock_server.http2 import Http2Socket
from aiperf_svc.mock_server.replies import Reply
from aiperf_svc.mock_server.serving_state import Tally

try:
    from aiperf_svc.mock_server import _quick_serving as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there

AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Socket errors that mean that there is nothing to do now."""
_FD_BITS = 24
_FD_MASK = (1 << _FD_BITS) - 1

EVENTS_PER_POLL = 512
"""Number of events after which accepting and sending get their turn, even if there are more."""

Unhandled = tuple[int, int, bytes | None, Reply | None, int]
"""Descriptor and event for the server to continue with; the bytes that were read (None: no read was
tried; empty: the client is gone); and, if a reply was found but not sent completely, that reply and
the number of bytes sent (-1: the client is gone)."""
Due = tuple[Connection, int, int | None]
"""A connection whose next write is due and no longer planned; how many of the `left` remain; and,
if the write was tried and its step is counted, the number of bytes that the kernel accepted (-1:
the client is gone)."""


def send(sock: socket.socket | Http2Socket, data: bytes | memoryview) -> int:
    """Return the number of bytes that the kernel accepted; -1 if the client is gone."""
    try:
        return sock.send(data)
    except AGAIN:
        return 0
    except OSError:
        return -1


class InterpretedQuickEvents:
    """Events on the descriptors of an epoll set.

    Every event is left to the server. The compiled version, for processes without delays, rows and
    TLS, serves an event itself if the connection in the `table` waits for a request, the request is
    one of the `quick` ones (with any id), and the kernel accepts the whole reply.
    """

    __slots__ = ("_epoll", "_events")

    def __init__(
        self,
        epoll: select.epoll,
        table: list[Connection | None],
        quick: dict[bytes, Reply],
        tally: Tally,
    ) -> None:
        self._epoll = epoll
        self._events: Iterator[tuple[int, int]] = iter(())

    def poll(self, is_waiting: bool) -> None:
        """Wait for events, or check whether there are any."""
        self._events = iter(self._epoll.poll(-1 if is_waiting else 0, EVENTS_PER_POLL))

    def next_unhandled(self) -> Unhandled | None:
        """Return the next event that is left to the server; None when due writes must be sent.

        If it was to wait for events, it may continue to wait after serving all available ones.
        """
        for fd, event in self._events:
            return fd, event, None, None, 0
        return None


class InterpretedDueWrites:
    """Connections of the `table` with a planned write, ordered by time.

    Due writes are in a heap of integers, with the due time (monotonic ns) above the descriptor: an
    entry needs 40 bytes and compares fast. An entry that differs from its connection's `due_ns` is
    stale and is dropped when it reaches the top.
    """

    __slots__ = ("_heap", "_itl_ns", "_rows", "_table", "_tally")

    def __init__(
        self, table: list[Connection | None], tally: Tally, rows: RequestRows | None, itl_ns: int
    ) -> None:
        self._table = table
        self._tally = tally
        self._rows = rows
        self._itl_ns = itl_ns
        self._heap: list[int] = []

    def add(self, connection: Connection) -> None:
        """Plan the next write of a connection for its `due_ns`."""
        heappush(self._heap, connection.due_ns << _FD_BITS | connection.fd)

    def first_ns(self) -> int:
        """Monotonic time of the first planned write; 0 if none is planned."""
        return self._heap[0] >> _FD_BITS if self._heap else 0

    def shift(self, by_ns: int) -> None:
        """Postpone all planned writes."""
        self._heap = [entry + (by_ns << _FD_BITS) for entry in self._heap]
        heapify(self._heap)

    def next_write(self, pass_ns: int, left: int) -> Due | None:
        """Process up to `left` entries that are due at `pass_ns`, soonest first. Return the first
        one that is left to the sender; None if there is none.

        A token's write in a stream with a token every `itl_ns` (negative: not such a stream) is not
        left to the sender, if the kernel accepts all of it.
        """
        heap, tally, rows, itl_ns = self._heap, self._tally, self._rows, self._itl_ns
        bound = (pass_ns + 1) << _FD_BITS
        while left > 0 and heap and heap[0] < bound:
            entry = heappop(heap)
            left -= 1
            connection = self._table[entry & _FD_MASK]
            if connection is None or connection.due_ns != entry >> _FD_BITS:
                continue
            reply, step = connection.reply, connection.step
            assert reply is not None
            if itl_ns < 0 or step + 1 >= reply.count:
                return connection, left, None
            if rows is not None:
                rows.sent(connection.row, step == 0, True, False)
            data = reply.writes[step]
            sent = send(connection.sock, data)
            connection.step = step + 1
            if sent != len(data):
                return connection, left, sent
            tally.writes += 1
            tally.bytes_out += sent
            connection.due_ns = max(connection.due_ns + itl_ns, pass_ns + 1)
            heappush(heap, connection.due_ns << _FD_BITS | connection.fd)
        return None


if compiled is None:
    QuickEvents, DueWrites = InterpretedQuickEvents, InterpretedDueWrites
else:
    QuickEvents, DueWrites = compiled.QuickEvents, compiled.DueWrites
