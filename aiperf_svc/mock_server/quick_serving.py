"""The two innermost steps of a serving process: a whole request whose response is one send, and
the next token of a stream.

There are a hundred thousand of them a second. Nearly all need no decision: the request is one that
was seen before, the token goes out whole, and the next one is due a fixed time later. These are
also in C (`_quick_serving.c`), which is used where it has been compiled and takes the interpreter
out of them. It hands all else back to server and sender, so what a request and a write mean is
decided in one place; without it the code here does the tokens, and they do all else.
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
"""Errors of a socket that mean that there is nothing to do now."""
_FD_BITS = 24
_FD_MASK = (1 << _FD_BITS) - 1

EVENTS_PER_POLL = 512
"""Accepting and sending have their turn after so many events, even if there are more."""

Unhandled = tuple[int, int, bytes | None, Reply | None, int]
"""Descriptor and event that are the server's to go on with; the bytes that were read (None: nothing
was tried; empty: the client is gone); and, where a reply was found but did not go out whole, that
reply and how many bytes of it did (-1: the client is gone)."""
Due = tuple[Connection, int, int | None]
"""A connection whose next write is due and no longer planned; how many of the `left` remain; and,
where the write was tried and its step is counted, how many of its bytes the kernel took (-1: the
client is gone)."""


def send(sock: socket.socket | Http2Socket, data: bytes | memoryview) -> int:
    """Returns how many of the bytes the kernel took, -1 if the client is gone."""
    try:
        return sock.send(data)
    except AGAIN:
        return 0
    except OSError:
        return -1


class InterpretedQuickEvents:
    """Events on the descriptors of an epoll set.

    Each event is left to the server. The compiled ones, which are for processes without delays,
    rows and TLS, serve those of a connection in the `table` that waits for a request and got one of
    the `quick` ones, with any id, if the kernel takes the reply whole.
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
        """Waits for events, or looks whether there are any."""
        self._events = iter(self._epoll.poll(-1 if is_waiting else 0, EVENTS_PER_POLL))

    def next_unhandled(self) -> Unhandled | None:
        """The next event that is left to the server; None when it is time to send what is due.

        When it was to wait for events, it may go on waiting while it serves all that there are.
        """
        for fd, event in self._events:
            return fd, event, None, None, 0
        return None


class InterpretedDueWrites:
    """Connections of the `table` that have a write planned, by its time.

    What is due waits in a heap of integers, the due time (monotonic ns) above the descriptor: an
    entry costs 40 bytes and compares fast. An entry that no longer equals its connection's `due_ns`
    is stale and is dropped when it comes up.
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
        """Plans the next write of a connection, for its `due_ns`."""
        heappush(self._heap, connection.due_ns << _FD_BITS | connection.fd)

    def first_ns(self) -> int:
        """Monotonic time of the first of them, 0 if none is planned."""
        return self._heap[0] >> _FD_BITS if self._heap else 0

    def shift(self, by_ns: int) -> None:
        """Moves all of them into the future."""
        self._heap = [entry + (by_ns << _FD_BITS) for entry in self._heap]
        heapify(self._heap)

    def next_write(self, pass_ns: int, left: int) -> Due | None:
        """Takes up to `left` entries that are due at `pass_ns`, soonest first; the first one that
        is left to the sender, None if there is none.

        Not left to it is a token's write within a stream whose tokens come every `itl_ns` (negative
        if that is not so), if the kernel takes it whole.
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
