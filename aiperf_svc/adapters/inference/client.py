"""Sends HTTP/1.1 requests over plain sockets and reads their responses: the hot path of a worker.

At 40,000 requests or 120,000 chunks per second, an HTTP library costs more CPU than the server. The
time at which it delivers a chunk depends on the load of this process, not on the arrival of the
bytes. Therefore the client does only what must be done while a request is in flight: it writes
prepared bytes, reads, records the kernel's receive timestamp, and finds the end of the response. It
decodes nothing. A record processor gets the raw bytes in batches.

A `Request` holds its complete state, and a `Connection` carries one request at a time. Nothing else
is allocated for a request. `request_writer` writes it, `response_reader` reads its response, and
`in_flight` ends it. This module connects them and checks timeouts. `services.load_generator`
decides what to send, and `core.records.assembly` reads the batches.
"""

import select
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Final

from aiperf_svc.adapters.inference.connection import CONNECTING, Connection
from aiperf_svc.adapters.inference.in_flight import OnEnd, RequestsInFlight
from aiperf_svc.adapters.inference.pool import ConnectionPool
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.request_writer import RequestWriter
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.adapters.inference.response_reader import ResponseReader
from aiperf_svc.adapters.inference.timerfd import Ticker, WallTimer
from aiperf_svc.core.load.target_addresses import TargetAddresses
from aiperf_svc.domain.outcomes import ErrorKind
from aiperf_svc.protocol.messages.reports import AddressUse, HistogramDelta
from aiperf_svc.protocol.records import Flag

CUT_AT_ONCE: Final = 256
"""Maximum number of requests cancelled in one turn of the event loop. With thousands of them in one
turn, a worker would miss its heartbeats."""
CLOCK_JUMP_NS: Final = 1_000_000
READS_OF_OVERDUE: Final = 64
"""Maximum number of reads of an overdue response before it is ended. This is far more than a
socket's buffer holds, and stops a server that never stops sending."""

_CLOCK_JUMP = int(Flag.CLOCK_JUMP)


class InferenceClient:
    """Sends requests to one target and packs the responses into raw record batches.

    `on_end(request, outcome)` is called when a request has ended. It may send the next one.
    `on_timer(now_wall_ns)` is called at the time set with `wake_at`. `on_batch(fragments, reads,
    bodies, last_seq)` receives a finished batch. `on_part(request)` is called after each read of an
    incomplete response whose bytes are kept (`Request.kept`). It may send.
    """

    def __init__(
        self,
        target: Target,
        *,
        on_end: OnEnd,
        on_timer: Callable[[int], None],
        on_batch: Callable[[bytes, bytes, bytes, int], None],
        poll_every_ns: int,
        on_part: Callable[[Request], None] | None = None,
        records: RawRecords | None = None,
        first_id: int = 0,
    ) -> None:
        """Several clients may share `records`; their request ids start at different `first_id`s."""
        self._target = target
        self._on_timer = on_timer
        self._poll_every_ns = poll_every_ns
        self._epoll = epoll = select.epoll()
        self._timer = WallTimer()
        epoll.register(self._timer.fd, select.EPOLLIN)
        self._ticker = Ticker()
        epoll.register(self._ticker.fd, select.EPOLLIN)
        self._pool = pool = ConnectionPool(target, epoll)
        # The pool's own containers, to save an attribute access for each use.
        self._connections, self._closing = pool.by_fd, pool.closing
        self._records = records = records or RawRecords(on_batch)
        self._in_flight = in_flight = RequestsInFlight(
            pool, records, epoll, on_end, keeps_connections=target.keep_alive
        )
        self._writer = writer = RequestWriter(target, pool, in_flight, first_id=first_id)
        self._reader = ResponseReader(
            epoll, pool, records, in_flight, writer, self._handle_timer, on_part
        )
        self._wake_at_wall_ns: int | None = None
        """Time at which the timer fires; None if it is not set."""
        self._is_in_phase = False
        self._to_cut: list[Connection] = []
        self._cut_message = ""
        self._to_abandon: list[tuple[Connection, Request]] = []
        self._nothing_expires_before_mono_ns = 0
        self._clock_gap_ns = time_ns() - monotonic_ns()
        self._last_seq_at_check = 0
        """Highest record number when the clocks were last read."""
        self.clock_steps_ns = 0
        self.ended_near_steps = 0

    @property
    def fd(self) -> int:
        """Return the descriptor that is readable when `run_ready` has work."""
        return self._epoll.fileno()

    @property
    def parts(self) -> "list[InferenceClient]":
        """Return the client of each target: this one."""
        return [self]

    @property
    def addresses(self) -> TargetAddresses:
        return self._pool.addresses

    def address_uses(self) -> tuple[AddressUse, ...]:
        """Return how each address has been used so far. Visits every connection."""
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

    def network_times(self) -> tuple[HistogramDelta, ...]:
        """Return the network times of the target so far. Visits every connection."""
        return self._pool.network_times.with_open(self._connections.values())

    @property
    def last_seq(self) -> int:
        """Return the number of the request that ended last."""
        return self._records.last_seq

    @property
    def in_flight(self) -> int:
        """Return the number of requests that were sent and have not ended."""
        return self._in_flight.count

    @property
    def requests_sent(self) -> int:
        """Return the number of requests written, including retries."""
        return self._writer.requests_sent

    @property
    def retries(self) -> int:
        return self._writer.retries

    @property
    def unasked(self) -> int:
        """Return the number of connections that received bytes without a request."""
        return self._in_flight.unasked

    @property
    def held_back_ns(self) -> int:
        """Return the total time in which responses were held back."""
        return self._reader.held_back_ns

    # --- called by the load generator ------------------------------------------------------------

    def send(self, request: Request) -> Connection | None:
        """Write a request on an idle or a new connection. Returns the connection; None if no
        connection could be made and the request has ended."""
        return self._writer.send(request)

    def connection_of(self, request: Request) -> Connection | None:
        """Return the connection that carries a request now. Visits every connection."""
        return next((c for c in self._connections.values() if c.request is request), None)

    def has(self, conn: Connection) -> bool:
        return self._connections.get(conn.fd) is conn

    def abandon(self, carrier: Connection, request: Request) -> None:
        """End a request that its client abandons, after reading all data that has arrived, and
        close its connection. A response that is then complete counts as completed. Must be called
        within `on_timer`."""
        self._to_abandon.append((carrier, request))

    def _abandon_all(self) -> None:
        leaving, self._to_abandon = self._to_abandon, []
        for conn, request in leaving:
            if conn.request is request:
                self._in_flight.abandon(conn)

    def preconnect(self, count: int) -> bool:
        """Open connections in advance until there are `count`, see `ConnectionPool.preconnect`.
        Returns False without connecting if each request needs a new connection."""
        return self._in_flight.keeps_connections and self._pool.preconnect(count)

    def poll_often(self, is_on: bool) -> None:
        """Poll at least every `poll_every_ns` from the start of a phase; stop at its end.

        A timestamp is uncertain by the time since the previous poll. An idle client would poll only
        when something arrives, and the first token of a slow server would seem uncertain by its
        whole latency. With regular polls, the bound measures how busy the client was, not the
        server.
        """
        self._is_in_phase = is_on
        self._ticker.every(self._poll_every_ns if is_on else 0)
        self._pool.reset_connect_failures()

    def wake_at(self, wall_ns: int | None) -> None:
        """Set the time at which `on_timer` is called; None disables it."""
        if wall_ns != self._wake_at_wall_ns:
            self._wake_at_wall_ns = wall_ns
            self._timer.set(wall_ns)

    def cancel_in_flight(self, message: str) -> None:
        """Cancel every request in flight and close its connection. Takes several turns of the event
        loop if there are many requests; then `on_timer` is called."""
        self._to_cut = [conn for conn in self._connections.values() if conn.request is not None]
        self._cut_message = message
        self._cut_some()

    def _cut_some(self) -> None:
        cut, self._to_cut = self._to_cut[:CUT_AT_ONCE], self._to_cut[CUT_AT_ONCE:]
        for conn in cut:
            if conn.request is not None:
                self._in_flight.cancel(conn, self._cut_message)
        self._pool.close_sockets()

    def hold_back(self) -> None:
        """Stop reading started responses until `resume`. Their servers wait when the kernel's
        buffers are full."""
        self._reader.hold_back()

    def resume(self) -> None:
        self._reader.resume()

    def revoke_unwritten(self) -> list[Request]:
        """Remove the requests that wait for a connection, and return them."""
        waiting = [
            (conn, conn.request)
            for conn in self._connections.values()
            if conn.request is not None and not conn.request.was_written
        ]
        for conn, _ in waiting:
            self._in_flight.revoke(conn)
        return [request for _, request in waiting]

    def close(self) -> None:
        self._pool.close()
        self._timer.close()
        self._ticker.close()
        self._reader.close()
        self._epoll.close()

    # --- called by the event loop ----------------------------------------------------------------

    def run_ready(self) -> None:
        """Handle everything that is ready now."""
        self._reader.read_all()
        if self._pool.wanted:
            self._pool.connect_ahead()
        if self._to_cut:
            self._cut_some()
            if not self._to_cut:
                self._on_timer(time_ns())
        if self._to_abandon:
            self._abandon_all()
        if self._closing:
            self._pool.close_sockets()

    def _handle_timer(self, fd: int) -> None:
        """Handle a descriptor that may be one of the timers."""
        if fd == self._timer.fd:
            self._timer.clear()
            self._wake()
        elif fd == self._ticker.fd:
            self._ticker.clear()
            self._reader.end_done()

    def _wake(self) -> None:
        now = time_ns()
        if self._wake_at_wall_ns is None:
            return
        if now >= self._wake_at_wall_ns:
            self._wake_at_wall_ns = None
            self._on_timer(now)
        else:
            self._timer.set(self._wake_at_wall_ns)

    def housekeeping(self) -> None:
        """Check overdue connects, clock jumps and waiting batches. Called about every 50 ms."""
        self._check_clocks()
        self._reader.reset_layout_budget()
        self._reader.end_done()
        self._reader.drop_drained()
        self._records.flush()
        for conn in self._pool.overdue():
            if conn.request is not None:
                self._writer.move(conn, conn.request)
            if conn.is_open and conn.request is None:
                self._pool.keep_as_probe(conn)
        self._pool.close_sockets()

    def _check_clocks(self) -> None:
        """Count a step of the wall clock, and flag the requests that it may affect."""
        before = monotonic_ns()
        wall = time_ns()
        after = monotonic_ns()
        # If the process was stopped between two readings, this looks like a step of the clock.
        if after - before >= CLOCK_JUMP_NS // 4:
            return
        gap_ns = wall - before
        step_ns = abs(gap_ns - self._clock_gap_ns)
        if step_ns > CLOCK_JUMP_NS:
            for conn in self._connections.values():
                if conn.request is not None:
                    conn.request.flags |= _CLOCK_JUMP
            self.clock_steps_ns += step_ns
            self.ended_near_steps += self.last_seq - self._last_seq_at_check
        self._clock_gap_ns = gap_ns
        self._last_seq_at_check = self.last_seq

    def expire(self) -> None:
        """End timed-out requests and connects, and probe down addresses. Called every second."""
        self._pool.network_times.fold()
        if self._is_in_phase:
            self._pool.probe()
        now = monotonic_ns()
        if now < self._nothing_expires_before_mono_ns:
            return
        target = self._target
        self._read_overdue(started_before_mono_ns=now - target.request_timeout_ns)
        # Requests that started later expire later.
        next_mono_ns = now + min(target.request_timeout_ns, target.connect_timeout_ns)
        for conn in list(self._connections.values()):
            request = conn.request
            if conn.is_being_made:
                expires = conn.opened_mono_ns + target.connect_timeout_ns
                if expires < now:
                    kind, text = ErrorKind.CONNECT, "timed out while connecting"
                    if conn.tls is not None:
                        kind, text = conn.tls.timeout
                    elif conn.state == CONNECTING:
                        self._pool.failed(conn, text)
                    self._in_flight.fail(conn, kind, f"{conn.address.place}: {text}")
                    continue
            elif request is not None:
                expires = request.started_mono_ns + target.request_timeout_ns
                if expires < now:
                    text = f"no complete response within {target.request_timeout_ns / 1e9:g} s"
                    self._in_flight.fail(conn, ErrorKind.TIMEOUT, text)
                    continue
            else:
                continue
            next_mono_ns = min(next_mono_ns, expires)
        self._nothing_expires_before_mono_ns = next_mono_ns
        self._pool.close_sockets()

    def _read_overdue(self, *, started_before_mono_ns: int) -> None:
        """Read the data that arrived while this process was stopped: its own pause is not a timeout
        of the server."""
        self.run_ready()
        requests = (conn.request for conn in self._connections.values())
        overdue = [
            request
            for request in requests
            if request is not None and request.started_mono_ns < started_before_mono_ns
        ]
        bytes_in = [-1] * len(overdue)
        for _ in range(READS_OF_OVERDUE):
            before, bytes_in = bytes_in, [request.bytes_in for request in overdue]
            if bytes_in == before:
                return
            self.run_ready()

    def flush(self) -> None:
        """Ship the records of the incomplete batch."""
        self._records.flush()
