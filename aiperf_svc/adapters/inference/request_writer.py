"""Writes requests: assigns connections, sets up TLS, writes, and retries.

A request gets an idle connection or a new one, and is written as soon as the connection is ready.
Until its first byte is written, it may move to another address. If the connection breaks just after
the write, the request may be sent again (`tcp_info.race_window_ns`).
"""

import select
import ssl
from time import monotonic_ns, time_ns

from aiperf_svc.adapters.inference.connection import HANDSHAKING, HEAD, IDLE, Connection
from aiperf_svc.adapters.inference.http2_stream import Http2Stream
from aiperf_svc.adapters.inference.in_flight import RequestsInFlight
from aiperf_svc.adapters.inference.pool import ConnectionPool, NotConnected
from aiperf_svc.adapters.inference.proxy import TunnelledStream
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.adapters.inference.stamped_reads import (
    begin,
    has_unread,
    has_unrequested,
    stamp_start,
    write_request,
)
from aiperf_svc.adapters.inference.tcp_info import race_window_ns
from aiperf_svc.adapters.inference.tls_stream import (
    Stream,
    StreamProblem,
    TlsStream,
    handshake_problem,
)
from aiperf_svc.domain.number_text import significant
from aiperf_svc.domain.outcomes import ErrorKind
from aiperf_svc.protocol.records import Flag

_RETRIED = int(Flag.RETRIED)


class RequestWriter:
    """Writes requests on connections of the pool. Requests that cannot be written end in
    `in_flight`."""

    def __init__(
        self,
        target: Target,
        pool: ConnectionPool,
        in_flight: RequestsInFlight,
        *,
        first_id: int = 0,
    ) -> None:
        self._tls_context, self._server_name = target.tls_context, target.server_name
        self._tunnel, self._is_http2 = target.route.tunnel, target.is_http2
        self._pool, self._in_flight = pool, in_flight
        self._idle = pool.idle
        self._last_id = first_id
        self.requests_sent = 0
        """Number of requests written, including retries."""
        self.retries = 0
        """Number of retries."""

    def send(self, request: Request) -> Connection | None:
        """Write a request on an idle connection, or on a new one when it is ready. Returns the
        connection; None if the request has ended without one."""
        self._last_id = request.request_id = self._last_id + 1
        self._in_flight.count += 1
        idle = self._idle
        while idle:
            conn = idle.pop()
            if conn.state != IDLE:
                continue  # the server has closed it since, possibly with many others
            # Over HTTP/2, bytes between two responses belong to neither.
            if self._is_http2 or not has_unread(conn):
                break
            self._in_flight.unasked += has_unrequested(conn)
            self._pool.drop(conn)
        else:
            made = self._pool.spare_or_new()
            if isinstance(made, NotConnected):
                self._in_flight.fail_unconnected(request, made)
                return None
            conn = made
        try:
            unsent = begin(conn, request)
        except OSError as error:
            self.requests_sent += 1
            self.disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return conn
        if unsent is not None:
            self.requests_sent += 1
            if unsent:
                conn.wait_to_write(memoryview(request.payload)[-unsent:])
        elif conn.state == IDLE:
            self._write(conn, request)
        return conn

    # --- connecting ------------------------------------------------------------------------------

    def connected(self, conn: Connection) -> None:
        """Continue with a connection whose connect attempt has ended."""
        error = self._pool.connected(conn)
        if error:
            self._not_connected(conn, error)
        elif self._tls_context is not None or self._is_http2:
            conn.tls = self._new_stream()
            conn.state = HANDSHAKING
            self.handshake(conn, conn.tls)
        else:
            self._ready(conn)

    def _not_connected(self, conn: Connection, kind: ErrorKind) -> None:
        """Handle a failed connect. The request moves to another address while one is up."""
        addresses, request = self._pool.addresses, conn.request
        others = len(addresses.in_use) - 1
        if request is not None and addresses.has_up and request.moves < others:
            self.move(conn, request)
            self._pool.drop(conn)
        else:
            self._in_flight.fail(conn, kind, self._pool.connect_message(conn.address))

    def move(self, conn: Connection, request: Request) -> None:
        """Move an unwritten request from its connection to a new one."""
        conn.request = None
        request.moves += 1
        self._assign(request, self._pool.new(), since_mono_ns=conn.waiting_since_mono_ns)

    def _assign(
        self, request: Request, made: Connection | NotConnected, *, since_mono_ns: int
    ) -> None:
        """Assign a connection to a request that has waited since `since_mono_ns`."""
        if isinstance(made, NotConnected):
            self._in_flight.fail_unconnected(request, made)
        else:
            made.request = request
            made.waiting_since_mono_ns = since_mono_ns

    def _new_stream(self) -> Stream:
        context = self._tls_context
        tls: TlsStream | None = None
        if context is not None:
            if self._tunnel:
                tls = TunnelledStream(context, self._server_name, self._tunnel)
            else:
                tls = TlsStream(context, self._server_name)
        if tls is None or self._is_http2:
            return Http2Stream(tls)
        return tls

    def handshake(self, conn: Connection, tls: Stream) -> None:
        """Continue the handshake of TLS, HTTP/2, or both."""
        try:
            is_done = tls.handshake()
        except ssl.SSLError as error:
            self._send_encrypted(conn, tls)
            if conn.is_open:
                if isinstance(error, StreamProblem):
                    self._in_flight.fail(conn, error.kind, error.args[0])
                else:
                    self._in_flight.fail(conn, ErrorKind.TLS, handshake_problem(error))
            return
        if is_done:
            conn.tls_ns = monotonic_ns() - conn.opened_mono_ns - conn.connect_ns
        self._send_encrypted(conn, tls)
        if is_done and conn.is_open:
            self._ready(conn)

    def _ready(self, conn: Connection) -> None:
        conn.state = IDLE
        if conn.request is not None:
            conn.count_from_wait()
            self._write(conn, conn.request)
        else:
            # Opened in advance: no request waits for it.
            conn.connect_ns = conn.tls_ns = 0
            self._idle.append(conn)

    # --- writing ---------------------------------------------------------------------------------

    def _write(self, conn: Connection, request: Request) -> None:
        self.requests_sent += 1
        if conn.tls is not None:
            stamp_start(conn, request)
            conn.tls.encrypt(request.payload)
            self._send_encrypted(conn, conn.tls)
            request.sent_wall_ns = time_ns()
            return
        try:
            unsent = write_request(conn)
        except OSError as error:
            self.disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return
        if unsent:
            conn.wait_to_write(memoryview(request.payload)[-unsent:])

    def write_more(self, conn: Connection) -> None:
        """Continue writing on a connection that accepts bytes again."""
        if conn.unsent is None:
            return
        try:
            count = conn.sock.send(conn.unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self.disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return
        if conn.request is not None:
            conn.request.sent_wall_ns = time_ns()
        conn.unsent = conn.unsent[count:]
        if not conn.unsent:
            conn.unsent = None
            conn.epoll.modify(conn.fd, select.EPOLLIN)

    def leave_stream(self, conn: Connection) -> bool:
        """Cancel the stream of a response over HTTP/2. Returns whether the connection can carry
        another request."""
        tls = conn.tls
        if not isinstance(tls, Http2Stream):
            return False
        tls.leave_stream()
        self.send_pending(conn, tls)
        return conn.is_open and conn.may_reuse

    def send_pending(self, conn: Connection, tls: Stream) -> None:
        """Send data that a read requires, such as another part of the request."""
        was_sending = tls.is_sending
        self._send_encrypted(conn, tls)
        if was_sending and not tls.is_sending and conn.request is not None:
            conn.request.sent_wall_ns = time_ns()

    def _send_encrypted(self, conn: Connection, tls: Stream) -> None:
        data = tls.to_send()
        if not data:
            return
        if conn.unsent is not None:
            conn.unsent = memoryview(bytes(conn.unsent) + data)
            return
        try:
            count = conn.sock.send(data)
        except BlockingIOError:
            count = 0
        except OSError as error:
            self.disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return
        if count < len(data):
            conn.wait_to_write(memoryview(data)[count:])

    # --- broken connections ----------------------------------------------------------------------

    def disconnected(self, conn: Connection, kind: ErrorKind, message: str) -> None:
        """Handle a broken connection. The request is retried once if the connection was used before
        and broke without a byte of a response, so soon that the close may have crossed the
        request."""
        request = conn.request
        if request is None or conn.state != HEAD or request.bytes_in:
            self._in_flight.fail(conn, kind, message)
        elif self._may_have_crossed(conn, request):
            self._retry(conn, request)
        elif kind == ErrorKind.SEND:
            self._in_flight.fail(conn, kind, message)
        else:
            after_ms = (time_ns() - request.write_wall_ns) / 1e6
            after = f"{significant(after_ms, 3)} ms after the request"
            text = f"closed by the server {after}, without a response"
            self._in_flight.fail(conn, ErrorKind.NO_RESPONSE, text)

    def broken(self, conn: Connection, problem: StreamProblem) -> None:
        """Handle a connection that cannot carry more requests. A request that the server reports as
        unprocessed is retried once."""
        request = conn.request
        if (
            request is not None
            and problem.is_unprocessed
            and not request.bytes_in
            and not request.flags & _RETRIED
        ):
            self._retry(conn, request)
        else:
            self._in_flight.fail(conn, problem.kind, problem.args[0])

    def _may_have_crossed(self, conn: Connection, request: Request) -> bool:
        """Return whether the server may have closed the idle connection while the request was in
        transit for the first time."""
        if not conn.is_used or request.flags & _RETRIED:
            return False
        # The close arrived after the previous poll. Our own delay since then is not the server's.
        elapsed_ns = self._in_flight.previous_poll_wall_ns - request.write_wall_ns
        return elapsed_ns <= race_window_ns(conn.sock)

    def _retry(self, conn: Connection, request: Request) -> None:
        self.retries += 1
        self._last_id += 1
        began = request.started_mono_ns - request.connect_ns - request.tls_ns
        request.start_over(self._last_id)
        conn.request = None
        made = self._pool.new()
        self._pool.drop(conn)
        self._assign(request, made, since_mono_ns=began)
