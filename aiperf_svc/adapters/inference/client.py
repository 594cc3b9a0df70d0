"""The hot path: HTTP/1.1 requests over plain sockets, every read stamped by the kernel.

The problem: at 40,000 requests or 120,000 chunks a second an HTTP library costs more than the
server, and the time at which such a library hands over a chunk says how busy *we* are, not when
the bytes came. So this module does only what must happen while a request is in flight: write bytes
that are ready, read, note the kernel's receive stamp, and find where the response ends. It decodes
nothing; the raw bytes leave in batches for a record processor.

Sockets are in two epoll sets, and one wake-up of the event loop reads every socket that has
something. The first set, which the loop watches, has the sockets whose response is still to begin
or has just begun, the timer, and the second set, in which are the sockets in the middle of a
response. While those are read, the first set has its turn every few reads: under load a first
token, and a request that is due, wait for a few reads and not for all of them. What waits then are
chunks in the middle of streams, which move neither the time to the first token nor that to the
last.

A poll also bounds what a stamp can hide: segments that wait unread merge and keep the newest stamp,
so with each read goes the time of the previous poll, at which this socket had nothing yet.

One `Connection` carries one request at a time and holds all that is known of it; nothing else is
allocated for a request. Where the flow goes next: `services.load_generator` decides what to send,
`core.records.assembly` reads what leaves here.
"""

import select
import ssl
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any, Final

from aiperf_svc.adapters.inference.connection import (
    BODY,
    CONNECTING,
    HANDSHAKING,
    HEAD,
    IDLE,
    Connection,
)
from aiperf_svc.adapters.inference.framing import BROKEN, MAX_HEAD_BYTES, ResponseFraming
from aiperf_svc.adapters.inference.keep_alive_race import race_window_ns
from aiperf_svc.adapters.inference.pool import ConnectionPool, connect_error
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.adapters.inference.stamped_reads import (
    FIRST_READS_BYTES,
    MAX_KEPT_BYTES,
    MAX_RESPONSE_BYTES,
    Read,
    Unhandled,
    begin,
    part_bytes,
    stamp_start,
    take_ready,
    write_request,
)
from aiperf_svc.adapters.inference.timerfd import Ticker, WallTimer
from aiperf_svc.adapters.inference.tls_stream import TlsStream, handshake_problem
from aiperf_svc.core.load.target_addresses import TargetAddresses
from aiperf_svc.core.responses.layouts import MAX_LAYOUTS, Layout, layout_of
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.messages import AddressUse
from aiperf_svc.protocol.records import Flag, Framing

LAYOUTS_PER_TICK: Final = 32
"""Layouts of responses learned between two housekeeping ticks: where lengths hardly repeat,
learning costs more than it saves."""
READS_AT_ONCE: Final = 16
"""Reads in one step, a tenth of a millisecond. In the middle of responses there is a look at what
must not wait between two steps."""
CUT_AT_ONCE: Final = 256
"""Requests cancelled between two turns of the event loop: a worker with thousands of them must not
be silent for longer than the others believe it alive."""
MAX_EVENTS: Final = 65_536
"""All that is ready must be taken by one poll, or the previous poll would not bound a stamp."""
CLOCK_JUMP_NS: Final = 1_000_000

_REQUEST_FIELDS: Final = (
    "payload", "bytes_out", "phase", "index", "entry", "turn", "due", "input_tokens",
    "requested_tokens", "session", "kept",
)  # fmt: skip
"""Fields of a connection that describe its request before it is written."""

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT

_COMPLETED, _ERRORED = int(Outcome.COMPLETED), int(Outcome.ERRORED)
_CANCELLED, _STATUS = int(Outcome.CANCELLED), int(ErrorKind.STATUS)
_REUSED, _RETRIED = int(Flag.REUSED), int(Flag.RETRIED)
_UNSTAMPED, _CLOCK_JUMP = int(Flag.UNSTAMPED), int(Flag.CLOCK_JUMP)


class InferenceClient:
    """Sends requests to one target and packs what comes back into raw record batches.

    `on_end(connection, outcome, end_wall_ns)` is called when a request has ended, its fields still
    in the connection; it may send the next one at once. `on_timer(now_wall_ns)` is called when the
    time given to `wake_at` has come. `on_batch(fragments, reads, bodies, last_seq)` takes a
    finished batch.
    """

    def __init__(
        self,
        target: Target,
        *,
        on_end: Callable[[Connection, int, int], None],
        on_timer: Callable[[int], None],
        on_batch: Callable[[bytes, bytes, bytes, int], None],
        poll_every_ns: int,
    ) -> None:
        self._target = target
        self._keeps_connections = target.keep_alive
        self._on_end = on_end
        self._on_timer = on_timer
        self._poll_every_ns = poll_every_ns
        self._epoll = select.epoll()
        self._bodies = select.epoll()
        """The second epoll set: connections in the middle of a response."""
        self._bodies_fd = self._bodies.fileno()
        self._epoll.register(self._bodies_fd, _IN)
        self._timer = WallTimer()
        self._epoll.register(self._timer.fd, _IN)
        self._ticker = Ticker()
        self._epoll.register(self._ticker.fd, _IN)
        self._pool = pool = ConnectionPool(target, self._epoll)
        # The pool's own, without the way over it.
        self._connections, self._idle, self._closing = pool.by_fd, pool.idle, pool.closing
        self._framing = ResponseFraming()
        self._layouts: dict[int, Layout] = {}
        """Layouts by the length of a whole response that comes in one read."""
        self._layouts_left = LAYOUTS_PER_TICK
        self._has_bodies = False
        """Whether the last poll of the first set reported the second set as readable."""
        self._records = RawRecords(on_batch)
        self._polled = self._bodies_polled = time_ns()
        self._previous_poll = self._polled
        """Time of the previous poll of the set whose events are being handled."""
        self._wake_at = 0
        self._is_in_phase = False
        self._to_cut: list[Connection] = []
        self._cut_message = ""
        self._nothing_expires_before_mono_ns = 0
        self._last_id = 0
        self._clock_gap_ns = time_ns() - monotonic_ns()
        self._last_seq_at_look = 0
        """Highest record number at the last reading of the clocks."""
        self._first_reads_bytes = FIRST_READS_BYTES
        """Bytes of read rows at which a connection moves to the second set."""
        self._held_since_mono_ns = 0
        """0 while nothing is held back."""
        self._polled_before_hold = 0
        self._held_back_ns = 0
        self.clock_steps_ns = 0
        self.ended_near_steps = 0
        self.in_flight = 0
        self.requests_sent = 0
        """Requests written, including those that are sent again."""
        self.retries = 0
        """Requests that had to be sent again."""

    @property
    def fd(self) -> int:
        """Descriptor that is readable when `run_ready` has work."""
        return self._epoll.fileno()

    @property
    def addresses(self) -> TargetAddresses:
        """Of the target."""
        return self._pool.addresses

    def address_uses(self) -> tuple[AddressUse, ...]:
        """Return the use of each address so far. Visits every connection."""
        return tuple(
            AddressUse(
                address=each.name,
                connections=each.connections,
                requests=requests,
                failures=each.failures,
                error=each.error,
                is_down=each.is_down,
            )
            for each, requests in self._pool.requests_by_address().items()
        )

    @property
    def last_seq(self) -> int:
        """Return the number of the request that ended last."""
        return self._records.last_seq

    # --- what the load generator calls -----------------------------------------------------------

    def send(
        self,
        before: bytes,
        id_prefix: bytes,
        number: int,
        after: bytes,
        phase: int,
        index: int,
        entry: int,
        turn: int,
        due_wall_ns: int,
        flags: int,
        input_tokens: int,
        requested_tokens: int,
        session: Any = None,
        keep_response: bool = False,
    ) -> None:
        """Write a request, on an idle connection or on a new one: HTTP bytes `before` and `after`
        its `X-Request-Id`, which is a prefix and a number in decimal.

        With `keep_response` the raw response is in the connection's `kept` when `on_end` is called.
        """
        idle = self._idle
        conn = idle.pop() if idle else self._pool.spare_or_new()
        while conn.fd < 0 and conn.state == IDLE:
            # Closed by the server since: thousands may be at once, so each is met only here.
            conn = idle.pop() if idle else self._pool.spare_or_new()
        conn.kept = bytearray() if keep_response else None
        self._last_id = request_id = self._last_id + 1
        self.in_flight += 1
        try:
            unsent = begin(
                conn,
                before,
                id_prefix,
                number,
                after,
                request_id,
                phase,
                index,
                entry,
                turn,
                due_wall_ns,
                flags,
                input_tokens,
                requested_tokens,
                session,
            )
        except OSError as error:
            self.requests_sent += 1
            self._disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return
        if unsent >= 0:
            self.requests_sent += 1
            if unsent:
                self._send_later(conn, unsent)
        elif conn.state == IDLE:
            self._write(conn)
        elif conn.fd < 0:
            self._connect_failed(conn)

    def preconnect(self, count: int) -> bool:
        """Connect ahead until there are `count` connections; see the pool's."""
        return self._pool.preconnect(count)

    def poll_often(self, is_on: bool) -> None:
        """A phase begins or has ended: poll every `poll_every_ns` at least while it runs.

        A stamp is uncertain by the time since the previous poll. An idle client would poll only
        when something arrives, and the first token of a slow server would seem uncertain by its
        whole latency; polling more often makes the bound say how busy the client was, not the
        server.
        """
        self._is_in_phase = is_on
        self._ticker.every(self._poll_every_ns if is_on else 0)
        self._pool.reset_connect_failures()

    def wake_at(self, wall_ns: int) -> None:
        """Set the time at which `on_timer` is called; 0: never."""
        if wall_ns != self._wake_at:
            self._wake_at = wall_ns
            self._timer.set(wall_ns)

    def cancel_in_flight(self, message: str) -> None:
        """End every request in flight as cancelled and close its connection: some now, the others
        in the next turns of the event loop, and then `on_timer` is called."""
        self._to_cut = [conn for conn in self._connections.values() if conn.payload is not None]
        self._cut_message = message
        self._cut_some()

    def _cut_some(self) -> None:
        cut, self._to_cut = self._to_cut[:CUT_AT_ONCE], self._to_cut[CUT_AT_ONCE:]
        for conn in cut:
            if conn.payload is not None and conn.fd >= 0:
                self._finish(conn, _CANCELLED, 0, time_ns(), False, self._cut_message)
        self._pool.close_sockets()

    @property
    def held_back_ns(self) -> int:
        """Return the total time in which responses were held back."""
        since = self._held_since_mono_ns
        return self._held_back_ns + (monotonic_ns() - since if since else 0)

    def hold_back(self) -> None:
        """Stop reading responses that are in their middle until `go_on`. Their servers wait when
        the kernel's buffers are full."""
        self._held_since_mono_ns = monotonic_ns()
        self._polled_before_hold = self._bodies_polled
        self._first_reads_bytes = 0
        self._epoll.unregister(self._bodies_fd)
        # Some are in the first set for good: those whose every read is large enough to leave.
        for conn in self._connections.values():
            if conn.state == BODY and conn.epoll is self._epoll:
                self._watch_in(self._bodies, conn)

    def go_on(self) -> None:
        """Resume reading all responses."""
        self._held_back_ns = self.held_back_ns
        self._held_since_mono_ns = 0
        self._first_reads_bytes = FIRST_READS_BYTES
        # What has come since then may have come at any time since then.
        self._bodies_polled = self._polled_before_hold
        self._epoll.register(self._bodies_fd, _IN)

    def revoke_unwritten(self) -> int:
        """Take back the requests that wait for a connection. Returns their number."""
        waiting = [c for c in self._connections.values() if c.payload is not None and not c.start]
        for conn in waiting:
            conn.payload = None
            self.in_flight -= 1
            self._pool.drop(conn)
        return len(waiting)

    def close(self) -> None:
        """Close every socket."""
        self._pool.close()
        self._timer.close()
        self._ticker.close()
        self._bodies.close()
        self._epoll.close()

    # --- events ----------------------------------------------------------------------------------

    def run_ready(self) -> None:
        """Handle everything that is ready now."""
        if self._poll_first():
            self._poll_bodies()
        if self._pool.wanted:
            self._pool.connect_ahead()
        if self._to_cut:
            self._cut_some()
            if not self._to_cut:
                self._on_timer(time_ns())
        if self._closing:
            self._pool.close_sockets()

    def _poll_first(self) -> bool:
        """Handle the first set. Returns whether the second set has something to read."""
        events = self._epoll.poll(0, MAX_EVENTS)
        previous, self._polled = self._polled, time_ns()
        self._has_bodies = False
        for at in range(0, len(events), READS_AT_ONCE):
            self._take_some(events, at, previous)
        if not self._has_bodies:
            self._bodies_polled = self._polled
        return self._has_bodies

    def _poll_bodies(self) -> None:
        events = self._bodies.poll(0, MAX_EVENTS)
        previous, self._bodies_polled = self._bodies_polled, time_ns()
        for at in range(0, len(events), READS_AT_ONCE):
            if at:
                self._poll_first()
                if self._held_since_mono_ns:
                    self._polled_before_hold = previous
                    return
            self._take_some(events, at, previous)

    def _take_some(self, events: list[tuple[int, int]], at: int, previous_poll: int) -> None:
        """Handle the next `READS_AT_ONCE` events of one poll."""
        self._previous_poll = previous_poll
        stop = at + READS_AT_ONCE
        connections, records = self._connections, self._records
        for conn, left in take_ready(
            events, at, stop, connections, previous_poll, self._layouts, records
        ):
            if conn is None:
                self._ready_other(left)
            elif left is None:
                self._ended_whole(conn, conn.ack)
            elif conn.fd >= 0:  # else what was done for another has ended it
                self._finish_read(conn, left)
        records.flush_if_full()

    def _ready_other(self, fd: Unhandled) -> None:
        """Handle a descriptor that is not a connection, or whose connection is gone."""
        if fd == self._bodies_fd:
            self._has_bodies = True
        elif fd == self._timer.fd:
            self._timer.clear()
            self._wake()
        elif fd == self._ticker.fd:
            self._ticker.clear()

    def _finish_read(self, conn: Connection, left: Unhandled) -> None:
        if left is True:
            if conn.epoll is self._epoll:
                self._watch_in(self._bodies, conn)
        elif isinstance(left, tuple):
            self._take_read(conn, left)
        elif isinstance(left, int):
            self._ready_for(conn, left)
        elif left is not None:
            self._disconnected(conn, ErrorKind.DISCONNECTED, left.strerror or str(left))

    def _ready_for(self, conn: Connection, mask: int) -> None:
        """Handle a connection that is writable or broken."""
        if conn.state == CONNECTING:
            self._connected(conn)
            return
        if mask & _OUT:
            self._continue_write(conn)
        if conn.fd >= 0 and mask & ~_OUT:
            self._take_some([(conn.fd, _IN)], 0, self._previous_poll)

    def _watch_in(self, epoll: select.epoll, conn: Connection) -> None:
        """Move a connection into one of the two sets."""
        conn.epoll.unregister(conn.fd)
        conn.epoll = epoll
        epoll.register(conn.fd, _IN if conn.unsent is None else _IN | _OUT)

    def _wake(self) -> None:
        now = time_ns()
        if self._wake_at and now >= self._wake_at:
            self._wake_at = 0
            self._on_timer(now)
        elif self._wake_at:
            self._timer.set(self._wake_at)

    def housekeeping(self) -> None:
        """Check overdue connects, clock jumps and waiting batches; called about every 50 ms."""
        before = monotonic_ns()
        wall = time_ns()
        after = monotonic_ns()
        # Where processes share cores, one may be stopped between two readings: no clock jumped.
        if after - before < CLOCK_JUMP_NS // 4:
            gap_ns = wall - before
            step_ns = abs(gap_ns - self._clock_gap_ns)
            if step_ns > CLOCK_JUMP_NS:
                for conn in self._connections.values():
                    conn.flags |= _CLOCK_JUMP
                self.clock_steps_ns += step_ns
                self.ended_near_steps += self.last_seq - self._last_seq_at_look
            self._clock_gap_ns = gap_ns
            self._last_seq_at_look = self.last_seq
        self._layouts_left = LAYOUTS_PER_TICK
        self._records.flush()
        for conn in self._pool.overdue():
            if conn.payload is not None:
                self._send_on_another(conn)
            if conn.fd >= 0 and conn.payload is None:
                self._pool.keep_as_probe(conn)
        self._pool.close_sockets()

    def expire(self) -> None:
        """End requests and connects that took too long, and try addresses that are down; called
        about every second."""
        if self._is_in_phase:
            self._pool.probe()
        now = monotonic_ns()
        if now < self._nothing_expires_before_mono_ns:
            return
        # What came while this process stood still is read first: its own pause is no time-out of
        # the server's.
        self.run_ready()
        target = self._target
        # What begins after this look expires later than this.
        next_mono_ns = now + min(target.request_timeout_ns, target.connect_timeout_ns)
        for conn in list(self._connections.values()):
            if conn.state < IDLE:
                expires = conn.opened_mono_ns + target.connect_timeout_ns
                if expires < now:
                    text = "timed out while connecting"
                    if conn.state == CONNECTING:
                        self._pool.failed(conn, text)
                    self._broken(conn, ErrorKind.CONNECT, f"{conn.address.name}: {text}")
                    continue
            elif conn.payload is not None:
                expires = conn.started_mono_ns + target.request_timeout_ns
                if expires < now:
                    seconds = target.request_timeout_ns / 1e9
                    self._broken(
                        conn, ErrorKind.TIMEOUT, f"no complete response within {seconds:g} s"
                    )
                    continue
            else:
                continue
            next_mono_ns = min(next_mono_ns, expires)
        self._nothing_expires_before_mono_ns = next_mono_ns
        self._pool.close_sockets()

    def flush(self) -> None:
        """Ship the records that wait for a full batch."""
        self._records.flush()

    # --- connecting ------------------------------------------------------------------------------

    def _connect_failed(self, conn: Connection) -> None:
        """Fail a request whose connection could not be attempted."""
        kind, message = connect_error(conn.status), conn.line.decode()
        conn.status = 0
        self._finish(conn, _ERRORED, int(kind), time_ns(), False, message)

    def _connected(self, conn: Connection) -> None:
        code = self._pool.connected(conn)
        if code:
            self._unconnected(conn, connect_error(code))
        elif self._target.tls_context is not None:
            conn.tls = TlsStream(self._target.tls_context, self._target.server_name)
            conn.state = HANDSHAKING
            self._handshake(conn)
        else:
            self._ready(conn)

    def _unconnected(self, conn: Connection, kind: ErrorKind) -> None:
        """Handle a failed connect: the request moves to another address while one is up."""
        addresses = self.addresses
        others = len(addresses.in_use) - 1
        if conn.payload is not None and addresses.has_up and conn.moves < others:
            self._send_on_another(conn)
            self._pool.drop(conn)
        else:
            self._broken(conn, kind, self._pool.connect_message(conn.address))

    def _send_on_another(self, conn: Connection) -> None:
        """Move a request that is not written yet to a new connection."""
        again = self._pool.new()
        again.moves = conn.moves + 1
        again.flags, again.request_id = conn.flags, conn.request_id
        _move_request(conn, again)
        if again.fd < 0:
            self._connect_failed(again)

    def _handshake(self, conn: Connection) -> None:
        assert conn.tls is not None
        try:
            is_done = conn.tls.handshake()
        except ssl.SSLError as error:
            self._send_pending_tls(conn)
            if conn.fd >= 0:
                self._broken(conn, ErrorKind.TLS, handshake_problem(error))
            return
        if is_done:
            conn.tls_ns = monotonic_ns() - conn.opened_mono_ns - conn.connect_ns
        self._send_pending_tls(conn)
        if is_done and conn.fd >= 0:
            self._ready(conn)

    def _ready(self, conn: Connection) -> None:
        conn.state = IDLE
        if conn.payload is not None:
            self._write(conn)
        else:
            self._idle.append(conn)

    # --- writing ---------------------------------------------------------------------------------

    def _write(self, conn: Connection) -> None:
        self.requests_sent += 1
        if conn.tls is not None:
            self._encrypt(conn, conn.tls)
            return
        try:
            unsent = write_request(conn)
        except OSError as error:
            self._disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return
        if unsent:
            self._send_later(conn, unsent)

    def _send_later(self, conn: Connection, unsent: int) -> None:
        assert conn.payload is not None
        conn.unsent = memoryview(conn.payload)[-unsent:]
        conn.epoll.modify(conn.fd, _IN | _OUT)

    def _encrypt(self, conn: Connection, tls: TlsStream) -> None:
        assert conn.payload is not None
        stamp_start(conn)
        tls.encrypt(conn.payload)
        self._send_pending_tls(conn)
        conn.sent = time_ns()

    def _continue_write(self, conn: Connection) -> None:
        if conn.unsent is None or conn.sock is None:
            return
        try:
            count = conn.sock.send(conn.unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self._disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return
        conn.sent = time_ns()
        conn.unsent = conn.unsent[count:]
        if not conn.unsent:
            conn.unsent = None
            conn.epoll.modify(conn.fd, _IN)

    def _send_pending_tls(self, conn: Connection) -> None:
        assert conn.tls is not None
        data = conn.tls.to_send()
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
            self._disconnected(conn, ErrorKind.SEND, error.strerror or str(error))
            return
        if count < len(data):
            conn.unsent = memoryview(data)[count:]
            conn.epoll.modify(conn.fd, _IN | _OUT)

    # --- reading ---------------------------------------------------------------------------------

    def _look_at_parts(self, conn: Connection) -> None:
        """Handle the part of a response that has come so far."""
        if conn.epoll is self._epoll and len(conn.read_rows) >= self._first_reads_bytes:
            self._watch_in(self._bodies, conn)
        if len(conn.buffer) >= part_bytes(conn):
            self._records.take_part(conn)

    def _take_read(self, conn: Connection, read: Read, *, is_plain: bool = False) -> None:
        """Process a read for the request that waits for it; with `is_plain` it is decrypted."""
        data, stamp, now = read
        if not stamp:
            stamp = now
            if data:
                conn.flags |= _UNSTAMPED
        if conn.tls is not None and not is_plain:
            self._take_encrypted(conn, conn.tls, read)
            return
        state = conn.state
        is_first = state == HEAD and conn.buffer is None
        if is_first:
            layout = self._layouts.get(len(data))
            if layout is not None and _may_reuse(conn) and layout.pick(data) == layout.picked:
                self._take_whole(conn, data, stamp, now, layout)
                return
        if state == BODY:
            end = self._framing.end_of_body(conn, data, 0)
        elif state == HEAD:
            if not data:
                self._closed(conn, now)
                return
            if conn.buffer is not None:
                # The head came in parts: look at all of it, note only the new read.
                whole = bytes(conn.buffer) + data
                end = self._framing.take_head(conn, whole, stamp)
                end = end - len(conn.buffer) if end > 0 else end
            else:
                end = self._framing.take_head(conn, data, stamp)
        else:
            # Idle and closed by the server, or closed while TLS was being set up.
            self._broken(conn, ErrorKind.TLS, "closed during the TLS handshake")
            return
        if not data:
            self._closed(conn, now)
            return
        if end == BROKEN:
            self._records.add_read(conn, data, stamp, self._previous_poll, now)
            if conn.state == HEAD and conn.bytes_in > MAX_HEAD_BYTES:
                text = f"headers of over {MAX_HEAD_BYTES // 2**10} KiB: cut off"
                self._broken(conn, ErrorKind.TOO_LARGE, text)
            else:
                self._broken(conn, ErrorKind.PROTOCOL, "broken HTTP/1.1 framing")
        elif end < 0:
            self._records.add_read(conn, data, stamp, self._previous_poll, now)
            if conn.state == BODY:
                self._look_at_parts(conn)
            most = MAX_RESPONSE_BYTES if conn.kept is None else MAX_KEPT_BYTES
            if conn.bytes_in > most:
                self._broken(conn, ErrorKind.TOO_LARGE, f"over {most // 2**20} MiB: cut off")
        else:
            reuse = conn.keep_alive and _may_reuse(conn)
            if end != len(data):
                # Bytes after the response: nothing that comes on this connection can be trusted.
                reuse = False
                data = data[:end]
            self._records.add_read(conn, data, stamp, self._previous_poll, now)
            if conn.status >= 400:
                self._finish(conn, _ERRORED, _STATUS, stamp, reuse)
            else:
                if is_first and reuse and self._keeps_connections and self._layouts_left:
                    self._learn_layout(conn, data)
                self._finish(conn, _COMPLETED, 0, stamp, reuse)

    def _learn_layout(self, conn: Connection, data: bytes) -> None:
        self._layouts_left -= 1
        layout = layout_of(
            data, status=conn.status, framing=conn.framing, body_offset=conn.body_offset
        )
        if layout is not None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[len(data)] = layout

    def _take_whole(
        self, conn: Connection, data: bytes, stamp: int, now: int, layout: Layout
    ) -> None:
        """Process a good response in one read with a known layout, without parsing it."""
        conn.status, conn.framing = layout.status, layout.framing
        conn.body_offset = layout.body_offset
        self._records.add_whole(conn, data, stamp, self._previous_poll, now)
        conn.become_idle()
        self._ended_whole(conn, stamp)

    def _ended_whole(self, conn: Connection, stamp: int) -> None:
        """End a request whose response is recorded; its connection becomes idle."""
        self.in_flight -= 1
        if not self._keeps_connections:
            self._pool.drop(conn)
        else:
            if conn.epoll is self._bodies:
                self._watch_in(self._epoll, conn)
            self._idle.append(conn)
        self._on_end(conn, _COMPLETED, stamp)

    def _take_encrypted(self, conn: Connection, tls: TlsStream, read: Read) -> None:
        """The same over TLS. What ends by `close_notify` ends there: the server may leave its
        socket open for long."""
        data, stamp, now = read
        plain = b""
        if data:
            tls.receive(data)
            if conn.state == HANDSHAKING:
                self._handshake(conn)
                return
            try:
                plain = tls.decrypted()
            except ssl.SSLError as error:
                self._broken(conn, ErrorKind.TLS, str(error))
                return
            if plain:
                self._take_read(conn, (plain, stamp, now), is_plain=True)
        if (tls.is_closed or not data) and conn.fd >= 0:
            self._take_read(conn, (b"", stamp, now), is_plain=True)

    # --- endings ---------------------------------------------------------------------------------

    def _closed(self, conn: Connection, now: int) -> None:
        """Handle a close by the server."""
        if conn.state == BODY and conn.framing == Framing.UNTIL_CLOSE:
            kind = ErrorKind.STATUS if conn.status >= 400 else ErrorKind.NONE
            self._finish(conn, _ERRORED if kind else _COMPLETED, int(kind), now, False)
        else:
            self._disconnected(conn, ErrorKind.DISCONNECTED, "closed by the server")

    def _disconnected(self, conn: Connection, kind: ErrorKind, message: str) -> None:
        """The connection broke. Without a byte of a response that may have crossed the request, on
        a connection that was used before: then it is sent once more, on a new one."""
        if conn.payload is None or conn.state != HEAD or conn.bytes_in:
            self._broken(conn, kind, message)
        elif conn.is_used and not conn.flags & _RETRIED and self._may_have_crossed(conn):
            self._retry(conn)
        elif kind == ErrorKind.SEND:
            self._broken(conn, kind, message)
        else:
            after_ms = (time_ns() - conn.start) / 1e6
            text = f"closed by the server {after_ms:.3g} ms after the request, without a response"
            self._broken(conn, ErrorKind.NO_RESPONSE, text)

    def _may_have_crossed(self, conn: Connection) -> bool:
        # At the previous poll the close was not here: what we are late with is not the server's.
        return self._previous_poll - conn.start <= race_window_ns(conn.sock)

    def _retry(self, conn: Connection) -> None:
        self.retries += 1
        again = self._pool.new()
        again.flags = (conn.flags | _RETRIED) & ~_REUSED
        self._last_id = again.request_id = self._last_id + 1
        _move_request(conn, again)
        self._pool.drop(conn)
        if again.fd < 0:
            self._connect_failed(again)

    def _broken(self, conn: Connection, kind: ErrorKind, message: str) -> None:
        if conn.payload is None:
            self._pool.drop(conn)
        else:
            self._finish(conn, _ERRORED, int(kind), time_ns(), False, message)

    def _finish(
        self,
        conn: Connection,
        outcome: int,
        error: int,
        end_wall_ns: int,
        reuse: bool,
        message: str = "",
    ) -> None:
        self._records.end(conn, outcome, error, end_wall_ns, message.encode() if message else b"")
        conn.payload = None
        self.in_flight -= 1
        if reuse and self._keeps_connections:
            conn.become_idle()
            if conn.epoll is self._bodies:
                self._watch_in(self._epoll, conn)
            self._idle.append(conn)
        else:
            self._pool.drop(conn)
        self._on_end(conn, outcome, end_wall_ns)


def _may_reuse(conn: Connection) -> bool:
    """Whether another request may follow on a connection, for all that it knows by itself. The rest
    of a request whose response came before all of it was out would have to follow."""
    return conn.unsent is None and (conn.tls is None or not conn.tls.is_closed)


def _move_request(conn: Connection, again: Connection) -> None:
    """Give a request to another connection, but for its number and its flags."""
    for name in _REQUEST_FIELDS:
        setattr(again, name, getattr(conn, name))
    conn.payload = conn.session = conn.kept = None
