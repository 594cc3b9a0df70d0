"""Reads sockets in the order of their urgency, and finds the end of each response.

Sockets are in two epoll sets, and one wake-up of the event loop reads every readable socket. The
event loop watches the first set. It contains the sockets whose response has not started or has just
started, the timers, and the second set. The second set contains the sockets in the middle of a
response. While it is read, the first set is polled every few reads. So under load, a first token or
a due request waits for a few reads instead of all of them. Only chunks in the middle of streams
wait longer, which affects neither the time to the first token nor the time to the last one.

A poll also bounds the error of a timestamp: segments that wait unread merge and keep the newest
timestamp. Therefore each read records the time of the previous poll, when this socket had nothing
to read.
"""

import select
import ssl
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Final

from aiperf_svc.adapters.inference.connection import (
    BODY,
    CLOSED,
    CONNECTING,
    DRAINING,
    HANDSHAKING,
    HEAD,
    Connection,
)
from aiperf_svc.adapters.inference.framing import HeadTooLarge, ResponseFraming
from aiperf_svc.adapters.inference.in_flight import RequestsInFlight
from aiperf_svc.adapters.inference.pool import ConnectionPool
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.request_writer import RequestWriter
from aiperf_svc.adapters.inference.stamped_reads import (
    FIRST_READS_BYTES,
    HAS_ENDED,
    HAS_EVENT,
    IN_MIDDLE,
    IS_DONE,
    MAX_KEPT_BYTES,
    MAX_RESPONSE_BYTES,
    WAS_READ,
    Read,
    is_done,
    part_bytes,
    take_ready,
)
from aiperf_svc.adapters.inference.tls_stream import Stream
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.core.responses.layouts import MAX_LAYOUTS, Layout, layout_of
from aiperf_svc.domain.outcomes import ErrorKind
from aiperf_svc.protocol.records import Flag, Framing

LAYOUTS_PER_TICK: Final = 32
"""Maximum number of response layouts learned between two housekeeping ticks. If lengths rarely
repeat, learning costs more than it saves."""
READS_AT_ONCE: Final = 16
"""Number of reads in one step, which takes a tenth of a millisecond. Between two steps in the
second set, the first set is polled."""
MAX_EVENTS: Final = 65_536
"""One poll must return all ready descriptors, or the previous poll would not bound a timestamp."""

FIRST_DONE_WAIT_NS: Final = 5_000_000
"""How long a response waits for the end of its framing after `[DONE]`, until the server's behaviour
is known. Most servers send both at the same time."""
DONE_WAIT_NS: Final = 100_000_000
"""How long it waits if the server is known to end its framing. After that no end is expected."""

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_UNSTAMPED, _STREAMED = int(Flag.UNSTAMPED), int(Flag.STREAMED)


class ResponseReader:
    """Reads sockets, and ends requests with their responses.

    `on_other(fd)` is called for a readable descriptor of the first set that is not a connection.
    """

    def __init__(
        self,
        first_set: select.epoll,
        pool: ConnectionPool,
        records: RawRecords,
        in_flight: RequestsInFlight,
        writer: RequestWriter,
        on_other: Callable[[int], None],
        on_part: Callable[[Request], None] | None = None,
    ) -> None:
        self._epoll = first_set
        self._connections = pool.by_fd
        self._records, self._in_flight, self._writer = records, in_flight, writer
        self._on_other, self._on_part = on_other, on_part
        self._bodies = select.epoll()
        """The second set: connections in the middle of a response."""
        self._bodies_fd = self._bodies.fileno()
        self._epoll.register(self._bodies_fd, _IN)
        self._framing = ResponseFraming()
        self._layouts: dict[int, Layout] = {}
        """Layouts by the length of a response that arrived in one read."""
        self._layouts_left = LAYOUTS_PER_TICK
        self._has_bodies = False
        """Whether the last poll of the first set reported the second set as readable."""
        self._polled = self._bodies_polled = time_ns()
        self._first_reads_bytes = FIRST_READS_BYTES
        """Size of read rows, in bytes, at which a connection moves to the second set."""
        self._done: list[tuple[Connection, Request]] = []
        """Streams whose `[DONE]` has arrived without the end of their framing."""
        self._done_wait_ns = FIRST_DONE_WAIT_NS
        """How long such a request waits; 0 if the server sends nothing after `[DONE]`."""
        self._draining: dict[Connection, Request] = {}
        """Connections whose requests have stopped waiting, with these requests."""
        self._is_held_back = False
        self._held_since_mono_ns = 0
        self._polled_before_hold = 0
        self._held_back_ns = 0

    def close(self) -> None:
        """Close the second set."""
        self._bodies.close()

    def reset_layout_budget(self) -> None:
        """Allow more layouts to be learned. Called at each housekeeping tick."""
        self._layouts_left = LAYOUTS_PER_TICK

    def end_done(self) -> None:
        """End the requests whose framing did not end in time after `[DONE]`. Called per tick."""
        waiting, self._done = self._done, []
        overdue_wall_ns = time_ns() - self._done_wait_ns
        for conn, request in waiting:
            if conn.request is not request:
                if conn.is_open:
                    self._done_wait_ns = DONE_WAIT_NS
            elif request.end_wall_ns > overdue_wall_ns:
                self._done.append((conn, request))
            else:
                self._end_at_done(conn, time_ns())

    def drop_drained(self) -> None:
        """Drop the connections whose framing has not ended. Called at each housekeeping tick. Over
        HTTP/2 only the stream is reset."""
        overdue_wall_ns = time_ns() - DONE_WAIT_NS
        for conn, request in list(self._draining.items()):
            if conn.state == DRAINING:
                if request.end_wall_ns > overdue_wall_ns:
                    continue
                if self._done_wait_ns == FIRST_DONE_WAIT_NS:
                    self._done_wait_ns = 0
                if self._writer.leave_stream(conn):
                    self._in_flight.free_drained(conn)
                else:
                    self._in_flight.fail(conn, ErrorKind.DISCONNECTED, "")
            del self._draining[conn]

    # --- holding back ----------------------------------------------------------------------------

    @property
    def held_back_ns(self) -> int:
        """Return the total time in which responses were held back."""
        now = monotonic_ns() - self._held_since_mono_ns if self._is_held_back else 0
        return self._held_back_ns + now

    def hold_back(self) -> None:
        """Stop reading started responses until `resume`."""
        self._is_held_back = True
        self._held_since_mono_ns = monotonic_ns()
        self._polled_before_hold = self._bodies_polled
        self._first_reads_bytes = 0
        self._epoll.unregister(self._bodies_fd)
        # Connections whose reads are all large enough to be shipped remain in the first set.
        for conn in self._connections.values():
            if conn.state == BODY and conn.epoll is self._epoll:
                conn.watch_in(self._bodies)

    def resume(self) -> None:
        self._held_back_ns = self.held_back_ns
        self._is_held_back = False
        self._first_reads_bytes = FIRST_READS_BYTES
        # Bytes received since then may have arrived at any time in between.
        self._bodies_polled = self._polled_before_hold
        self._epoll.register(self._bodies_fd, _IN)

    # --- reading order ---------------------------------------------------------------------------

    def read_all(self) -> None:
        """Handle everything that is ready now."""
        if self._poll_first():
            self._poll_bodies()

    def _poll_first(self) -> bool:
        """Handle the first set. Returns whether the second set has readable sockets."""
        events = self._epoll.poll(0, MAX_EVENTS)
        previous, self._polled = self._polled, time_ns()
        self._has_bodies = False
        for at in range(0, len(events), READS_AT_ONCE):
            self._handle_some(events, at, previous)
        if not self._has_bodies:
            self._bodies_polled = self._polled
        return self._has_bodies

    def _poll_bodies(self) -> None:
        events = self._bodies.poll(0, MAX_EVENTS)
        previous, self._bodies_polled = self._bodies_polled, time_ns()
        for at in range(0, len(events), READS_AT_ONCE):
            if at:
                self._poll_first()
                if self._is_held_back:
                    self._polled_before_hold = previous
                    return
            self._handle_some(events, at, previous)

    def _handle_some(self, events: list[tuple[int, int]], at: int, previous_poll: int) -> None:
        """Handle the next `READS_AT_ONCE` events of one poll."""
        in_flight, records = self._in_flight, self._records
        in_flight.previous_poll_wall_ns = previous_poll
        stop = at + READS_AT_ONCE
        for conn, kind, value in take_ready(
            events, at, stop, self._connections, previous_poll, self._layouts, records
        ):
            if conn is None:
                self._handle_other(value)
            elif kind == HAS_ENDED:
                in_flight.complete_recorded(conn, value)
            elif conn.state == CLOSED:
                continue  # an earlier event of this batch has ended it
            elif kind == WAS_READ:
                self._handle_read(conn, value)
            elif kind == IN_MIDDLE:
                if conn.epoll is self._epoll:
                    conn.watch_in(self._bodies)
            elif kind == IS_DONE:
                self._handle_done(conn)
            elif kind == HAS_EVENT:
                self._handle_mask(conn, value)
            else:
                text = value.strerror or str(value)
                self._writer.disconnected(conn, ErrorKind.DISCONNECTED, text)
        records.flush_if_full()

    def _handle_other(self, fd: int) -> None:
        """Handle a descriptor that is not a connection, or whose connection is closed."""
        if fd == self._bodies_fd:
            self._has_bodies = True
        else:
            self._on_other(fd)

    def _handle_mask(self, conn: Connection, mask: int) -> None:
        """Handle a connection that is writable or broken."""
        if conn.state == CONNECTING:
            self._writer.connected(conn)
            return
        if mask & _OUT:
            self._writer.write_more(conn)
        if conn.is_open and mask & ~_OUT:
            self._handle_some([(conn.fd, _IN)], 0, self._in_flight.previous_poll_wall_ns)

    # --- one read --------------------------------------------------------------------------------

    def _handle_read(self, conn: Connection, read: Read) -> None:
        """Process a read, encrypted or not."""
        if conn.tls is None:
            self._handle_plain(conn, read)
        else:
            self._handle_encrypted(conn, conn.tls, read)

    def _handle_encrypted(self, conn: Connection, tls: Stream, read: Read) -> None:
        """Decrypt a read, process it, and send the reply that it requires. `close_notify` ends a
        response: the server may keep its socket open for a long time."""
        data, stamp, now = read
        if data:
            tls.receive(data)
            if conn.state == HANDSHAKING:
                self._writer.handshake(conn, tls)
                return
            try:
                plain = tls.decrypted()
            except ssl.SSLError as error:
                self._in_flight.fail(conn, ErrorKind.TLS, str(error))
                return
            if plain:
                self._handle_plain(conn, (plain, stamp, now))
            if not conn.is_open:
                return
            if tls.problem is not None:
                self._writer.broken(conn, tls.problem)
            else:
                self._writer.send_pending(conn, tls)
        if (tls.is_closed or not data) and conn.is_open:
            self._handle_plain(conn, (b"", stamp, now))

    def _handle_plain(self, conn: Connection, read: Read) -> None:
        """Process a read of the connection's request."""
        data, stamp, now = read
        request = conn.request
        if conn.state == DRAINING:
            self._drain(conn, data)
            return
        if request is None or conn.state < HEAD:
            # Closed by the server while idle, or during the TLS handshake.
            kind = ErrorKind.DISCONNECTED if conn.tls is None else conn.tls.handshake_kind
            text = "" if conn.tls is None else conn.tls.closed_text
            self._in_flight.unasked += request is None and bool(data)
            self._in_flight.fail(conn, kind, text)
            return
        if not data:
            self._handle_close(conn, request, now)
            return
        if not stamp:
            stamp = now
            request.flags |= _UNSTAMPED
        is_first = conn.state == HEAD and request.buffer is None
        if is_first:
            layout = self._layouts.get(len(data))
            if layout is not None and conn.may_reuse and layout.pick(data) == layout.picked:
                self._handle_whole(conn, request, (data, stamp, now), layout)
                return
        previous_poll = self._in_flight.previous_poll_wall_ns
        try:
            end = self._end_in(conn, request, data, stamp)
        except ProtocolViolation as error:
            if (
                not request.end_wall_ns
            ):  # otherwise the stream is complete, and these bytes are not part of it
                self._records.add_read(request, data, stamp, previous_poll, now)
            if isinstance(error, HeadTooLarge):
                self._in_flight.fail(conn, ErrorKind.TOO_LARGE, str(error))
            else:
                self._in_flight.fail(conn, ErrorKind.PROTOCOL, "broken HTTP/1.1 framing")
            return
        if end is None:
            self._records.add_read(request, data, stamp, previous_poll, now)
            if request.flags & _STREAMED and self._is_done(conn, request):
                request.end_wall_ns = stamp
                self._handle_done(conn)
            if conn.request is request:
                self._limit(conn, request)
            return
        # Bytes after the response: the rest of this connection cannot be trusted.
        may_reuse = conn.keep_alive and conn.may_reuse and end == len(data)
        may_reuse = may_reuse and self._in_flight.keeps_connections
        self._in_flight.unasked += end < len(data)
        data = data[:end]
        self._records.add_read(request, data, stamp, previous_poll, now)
        if request.status >= 400:
            self._in_flight.complete_with_error_status(conn, stamp, may_reuse=may_reuse)
            return
        if is_first and may_reuse and self._layouts_left:
            self._learn_layout(request, data)
        self._in_flight.complete(conn, stamp, may_reuse=may_reuse)

    def _end_in(
        self, conn: Connection, request: Request, data: bytes, stamp_wall_ns: int
    ) -> int | None:
        """Return the offset in `data` just after the response; None while it is incomplete."""
        framing = self._framing
        if conn.state == BODY:
            return framing.end_of_body(conn, request, data, 0)
        if request.buffer is None:
            return framing.take_head(conn, request, data, stamp_wall_ns)
        # The head arrived in several parts.
        before = bytes(request.buffer)
        end = framing.take_head(conn, request, before + data, stamp_wall_ns)
        return None if end is None else end - len(before)

    def _is_done(self, conn: Connection, request: Request) -> bool:
        """Return whether the received part of a response ends in `[DONE]`."""
        framing = 0
        if conn.state != BODY or request.status >= 400 or conn.line:
            return False
        if request.framing == Framing.CHUNKED:
            framing = max(0, 2 - conn.left)
        return is_done(request.buffer, framing)

    def _handle_done(self, conn: Connection) -> None:
        """Handle `[DONE]`, which ends a stream even if its framing continues."""
        request = conn.request
        assert request is not None
        if self._done_wait_ns and conn.keep_alive:
            self._done.append((conn, request))
        else:
            self._end_at_done(conn, request.end_wall_ns)

    def _end_at_done(self, conn: Connection, free_wall_ns: int) -> None:
        request = conn.request
        assert request is not None
        if conn.keep_alive and self._in_flight.keeps_connections:
            self._draining[conn] = request
        self._in_flight.complete_at_done(conn, free_wall_ns)

    def _drain(self, conn: Connection, data: bytes) -> None:
        """Process bytes after a response that has ended with `[DONE]`."""
        try:
            request = self._draining[conn]
            end = self._framing.end_of_body(conn, request, data, 0) if data else 0
        except ProtocolViolation:
            end = 0
        if end is None:
            return
        if end == len(data) and data and conn.may_reuse:
            self._done_wait_ns = DONE_WAIT_NS
            self._in_flight.free_drained(conn)
        else:
            self._in_flight.fail(conn, ErrorKind.DISCONNECTED, "")

    def _limit(self, conn: Connection, request: Request) -> None:
        """Ship the received part of an incomplete response, and cut it off if it is too long."""
        if conn.state == BODY:
            if conn.epoll is self._epoll and len(request.read_rows) >= self._first_reads_bytes:
                conn.watch_in(self._bodies)
            if len(request.buffer) >= part_bytes(request):
                self._records.take_part(request)
        max_bytes = MAX_RESPONSE_BYTES if request.kept is None else MAX_KEPT_BYTES
        if request.bytes_in > max_bytes:
            text = f"over {max_bytes // 2**20} MiB: cut off"
            self._in_flight.fail(conn, ErrorKind.TOO_LARGE, text)
        elif request.kept is not None and self._on_part is not None:
            self._on_part(request)

    def _learn_layout(self, request: Request, data: bytes) -> None:
        self._layouts_left -= 1
        layout = layout_of(
            data,
            status=request.status,
            framing=request.framing,
            body_offset=request.body_offset,
        )
        if layout is not None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[len(data)] = layout

    def _handle_whole(self, conn: Connection, request: Request, read: Read, layout: Layout) -> None:
        """Process a successful response of one read with a known layout, without parsing it."""
        data, stamp, now = read
        request.status, request.framing = layout.status, layout.framing
        request.body_offset = layout.body_offset
        request.ack_wall_ns = request.end_wall_ns = stamp
        previous_poll = self._in_flight.previous_poll_wall_ns
        self._records.add_whole(request, data, stamp, previous_poll, now)
        conn.become_idle()
        self._in_flight.complete_recorded(conn, request)

    def _handle_close(self, conn: Connection, request: Request, now: int) -> None:
        """Handle a close by the server, which may mark the end of a body."""
        if conn.state != BODY or request.framing != Framing.UNTIL_CLOSE:
            self._writer.disconnected(conn, ErrorKind.DISCONNECTED, "closed by the server")
        elif request.status >= 400:
            self._in_flight.complete_with_error_status(conn, now, may_reuse=False)
        else:
            self._in_flight.complete(conn, now, may_reuse=False)
