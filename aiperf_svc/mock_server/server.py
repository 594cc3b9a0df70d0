"""The loop of one serving process: it waits, accepts, reads, and lets the sender send.

asyncio costs more per request than all of this, and its timers are too coarse to pace tokens. So
this is a bare epoll loop with one small object per connection that does not parse known requests
again (`reply_cache`). The sender decides what is sent when, the account records what happened, and
the shared counters hold what all processes must know of each other.
"""

import errno
import random
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable

from aiperf_svc.mock_server.accounts import Account
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.connections import Connection, Connections
from aiperf_svc.mock_server.controls import Controls
from aiperf_svc.mock_server.delays import duration_ns, parse_delay
from aiperf_svc.mock_server.http2 import Http2Socket
from aiperf_svc.mock_server.quick_serving import AGAIN, InterpretedQuickEvents, QuickEvents
from aiperf_svc.mock_server.replies import Ending, Reply
from aiperf_svc.mock_server.reply_cache import ReplyCache, Route
from aiperf_svc.mock_server.requests import (
    MAX_BODY,
    MAX_HEAD,
    BadRequest,
    refuse_tls,
    split_request_id,
)
from aiperf_svc.mock_server.sender import Sender
from aiperf_svc.mock_server.shared_counters import SharedCounters
from aiperf_svc.mock_server.timers import Timer

_READ_SIZE = 64 * 1024
_ACCEPTS_PER_POLL = 256
"""Number of connections after which reading and sending get their turn, even if more wait."""
_SO_TIMESTAMPNS = 35
"""Linux's value; Python's socket module has no name for it."""
_TIMESPEC = struct.Struct("qq")
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CONTINUE = Reply(
    status=100,
    writes=[b"HTTP/1.1 100 Continue\r\n\r\n"],
    early=0,
    delay_tokens=0,
    ending=Ending.KEEP,
)


class Server:
    """One serving process; `run` never returns. Create it after the fork; it joins the shared
    counters as process `index`.
    """

    def __init__(
        self,
        config: MockServerConfig,
        *,
        index: int,
        listeners: list[socket.socket],
        shared: SharedCounters,
        tls: ssl.SSLContext | None,
        started_mono_ns: int,
    ) -> None:
        rng = random.Random(f"{config.seed}/{index}")
        self._replies = ReplyCache(config, rng=rng)
        self._account = Account(row_limit=config.truth_limit if config.truth else None)
        self._connections = Connections(
            self._account, keepalive_ns=duration_ns(config.keepalive_timeout)
        )
        self._sender = Sender(
            self._connections,
            self._account,
            ttft=parse_delay(config.ttft),
            itl=parse_delay(config.itl),
            rng=rng,
            is_translated=tls is not None or config.http2,
            slots=config.slots,
            extra_ns=shared.delay_ns,
            on_free=self._resume,
        )
        self._has_idle = duration_ns(config.keepalive_timeout) > 0
        self._shared = shared
        self._tls = tls
        self._has_http2 = config.http2
        self._has_stamps = config.truth and tls is None
        slow_ns = duration_ns(config.slow_start)
        self._ready_mono_ns = started_mono_ns + slow_ns if slow_ns else 0
        self._freeze_at_ns = duration_ns(config.freeze_at)
        self._freeze_for_ns = duration_ns(config.freeze_for)
        self._frozen_run_ns = 0  # the first request whose freeze has ended
        self._is_quick = (
            self._sender.is_instant
            and not config.truth
            and not self._replies.has_fault_rates
            and not slow_ns
            and not self._freeze_for_ns
        )
        self._controls = Controls(
            shared,
            self._account,
            replies=self._replies,
            sender=self._sender,
            model=config.model,
            has_details=not self._is_quick,
        )
        self._quick = self._replies.quick
        has_steps = self._is_quick and tls is None and not config.http2 and not self._has_idle
        events = QuickEvents if has_steps else InterpretedQuickEvents
        self._events = events(
            self._connections.epoll, self._connections.table, self._quick, self._account
        )
        self._timer = Timer()
        self._armed_ns = 0
        self._specials: dict[int, Callable[[], None]] = {}
        epoll = self._connections.epoll
        for listener in listeners:
            self._listen(listener)
        self._specials[self._timer.fd] = self._disarm
        epoll.register(self._timer.fd, select.EPOLLIN | select.EPOLLET)
        wakeup = shared.join(index)
        self._specials[wakeup] = self._controls.on_wakeup
        epoll.register(wakeup, select.EPOLLIN)

    def run(self) -> None:
        """Serve until the process is killed."""
        while True:
            self._serve_once()

    def _serve_once(self) -> None:
        """Wait for the next events and handle all of them."""
        next_unhandled, table = self._events.next_unhandled, self._connections.table
        self._events.poll(self._arm())
        if self._freeze_for_ns:
            self._sleep_through_freeze()
        while (left := next_unhandled()) is not None:
            fd, event, data, reply, sent = left
            connection = table[fd] if fd < len(table) else None
            if connection is None:
                special = self._specials.get(fd)
                if special is not None:
                    special()
            elif data is None:
                if event & select.EPOLLOUT and connection.out is not None:
                    self._sender.flush(connection)
                if event != select.EPOLLOUT and connection.fd >= 0:
                    self._read(connection)
            elif reply is None:
                self._take(connection, data)
            else:
                self._sender.whole_sent(connection, reply, len(data), sent)
        if self._sender.next_due_ns():
            self._sender.send_due()
        if self._has_idle:
            self._connections.close_idle()

    # Waiting

    def _arm(self) -> bool:
        """Set the timer to the next due time; return False if it has already passed."""
        due_ns = self._sender.next_due_ns()
        close_ns = self._connections.next_close_ns()
        if close_ns and (close_ns < due_ns or not due_ns):
            due_ns = close_ns
        if due_ns and due_ns != self._armed_ns:
            if due_ns <= time.monotonic_ns():
                return False
            self._armed_ns = due_ns
            self._timer.arm(due_ns)
        return True

    def _disarm(self) -> None:
        self._armed_ns = 0

    def _sleep_through_freeze(self) -> None:
        """Sleep if the freeze has started; afterwards streams continue as if no time had passed."""
        first_ns = self._shared.first_request_mono_ns
        if not first_ns or first_ns == self._frozen_run_ns:
            return
        now_ns = time.monotonic_ns()
        if now_ns < first_ns + self._freeze_at_ns:
            return
        self._frozen_run_ns = first_ns
        began_wall_ns = time.time_ns()
        end_ns = first_ns + self._freeze_at_ns + self._freeze_for_ns
        while now_ns < end_ns:
            time.sleep((end_ns - now_ns) / 1e9)
            now_ns = time.monotonic_ns()
        self._account.frozen_wall_ns = (began_wall_ns, time.time_ns())
        self._sender.shift(self._freeze_for_ns)

    # Reading

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        if self._has_stamps:
            listener.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._specials[listener.fileno()] = lambda: self._accept(listener)
        self._connections.epoll.register(listener.fileno(), select.EPOLLIN)

    def _accept(self, listener: socket.socket) -> None:
        """Accept waiting connections; accepted sockets inherit the listener's options."""
        for _ in range(_ACCEPTS_PER_POLL):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    self._connections.refuse(listener)
                    return
                continue  # the client left before it was accepted
            sock.setblocking(False)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self._connections.open(Http2Socket(sock) if self._has_http2 else sock)

    def _read(self, connection: Connection) -> None:
        try:
            if self._has_stamps:
                data, control, _flags, _address = connection.sock.recvmsg(_READ_SIZE, 64)
                if control:
                    seconds, nanoseconds = _TIMESPEC.unpack(control[0][2])
                    connection.arrival_wall_ns = seconds * 1_000_000_000 + nanoseconds
                elif data:
                    self._account.unstamped_arrivals += 1
                    connection.arrival_wall_ns = time.time_ns()
            else:
                data = connection.sock.recv(_READ_SIZE)
                if self._tls is not None:
                    data = self._rest_of_record(connection, data)
        except AGAIN:
            return
        except OSError:
            self._connections.drop(connection)
            return
        self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        """Process data that was read; empty data means that the client has left."""
        if not data:
            self._connections.drop(connection)
            return
        if self._has_idle:
            self._connections.note_busy(connection)
        if connection.inbuf is None and connection.reply is None:
            reply = self._quick.get(data) if self._is_quick else None
            if reply is not None:
                self._sender.begin_whole(connection, reply, len(data))
            else:
                self._consume(connection, data)
        else:
            self._buffer(connection, data)
        if self._has_idle:
            self._connections.note_idle(connection)

    def _rest_of_record(self, connection: Connection, data: bytes) -> bytes:
        """Append data that TLS has already decrypted, because epoll does not report it."""
        if self._account.rows is not None and data:
            connection.arrival_wall_ns = time.time_ns()
            self._account.unstamped_arrivals += 1
        sock = connection.sock
        assert isinstance(sock, ssl.SSLSocket | Http2Socket)
        while data and sock.pending():
            data += sock.recv(_READ_SIZE)
        return data

    def _buffer(self, connection: Connection, data: bytes) -> None:
        """Append bytes to the buffer, and parse it when it may contain a complete request."""
        if connection.inbuf is None:
            connection.inbuf, connection.need = bytearray(data), 0
        else:
            connection.inbuf += data
        if len(connection.inbuf) > MAX_HEAD + MAX_BODY + _READ_SIZE:
            self._account.rejected += 1
            self._connections.drop(connection)
        elif connection.reply is None:
            self._resume(connection)

    def _resume(self, connection: Connection) -> None:
        """Process buffered input if it may contain a complete request."""
        waiting = connection.inbuf
        if waiting is not None and len(waiting) >= connection.need:
            connection.inbuf = None
            self._consume(connection, bytes(waiting))

    def _consume(self, connection: Connection, data: bytes) -> None:
        """Start the reply to each complete request in the data, in order; keep the rest."""
        routes = self._replies.routes
        while True:
            end = data.find(b"\r\n\r\n")
            try:
                if end < 0 and len(data) <= MAX_HEAD:
                    refuse_tls(data)
                    connection.inbuf, connection.need = bytearray(data), 0
                    return
                if not 0 <= end <= MAX_HEAD:
                    raise BadRequest(431, f"the head exceeds {MAX_HEAD} bytes")
                head, request_id = split_request_id(data[:end])
                if request_id is not None and self._is_quick:
                    reply = self._quick.get(head + data[end:])
                    if reply is not None:
                        self._sender.begin_whole(connection, reply, len(data))
                        return
                route = routes.get(head) or self._replies.route(head)
            except BadRequest as bad:
                self._account.rejected += 1
                self._sender.begin_uncounted(
                    connection, self._replies.error(None, bad.status, bad.message)
                )
                return
            body_at = end + 4
            total = body_at + route.length
            if len(data) < total:
                connection.inbuf, connection.need = bytearray(data), total
                if route.head.expects_continue:
                    self._sender.begin_uncounted(connection, _CONTINUE)
                return
            is_alone = len(data) == total
            if is_alone and self._is_quick:
                self._replies.add_quick(route, head + data[end:], data[body_at:])
            self._reply(connection, route, data[body_at:total], request_id, total)
            if is_alone or connection.fd < 0:
                return
            data = data[total:]
            if connection.reply is not None:
                connection.inbuf, connection.need = bytearray(data), 0
                return

    # Replies

    def _reply(
        self, connection: Connection, route: Route, body: bytes, request_id: bytes | None, size: int
    ) -> None:
        if not route.is_inference:
            is_starting = self._ready_mono_ns != 0 and self._is_starting()
            self._controls.reply(connection, route, is_starting=is_starting)
            return
        replies = self._replies
        reply = route.refusal or route.replies.get(body) or replies.reply(route, body)
        if replies.has_fault_rates and reply.status == 200:
            fault = replies.draw_fault()
            if fault:
                reply = replies.faulty_reply(route, body, fault)
        if self._freeze_for_ns and not self._shared.first_request_mono_ns:
            self._shared.first_request_mono_ns = time.monotonic_ns()
        if self._ready_mono_ns and self._is_starting():
            reply = replies.unready(route.head)
        self._sender.begin(connection, reply, request_id, size)

    def _is_starting(self) -> bool:
        if time.monotonic_ns() >= self._ready_mono_ns:
            self._ready_mono_ns = 0
        return self._ready_mono_ns != 0
