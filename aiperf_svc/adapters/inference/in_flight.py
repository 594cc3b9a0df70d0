"""Ends requests: records them, frees their connections, and notifies the load generator."""

import select
from collections.abc import Callable
from time import time_ns

from aiperf_svc.adapters.inference.connection import DRAINING, Connection
from aiperf_svc.adapters.inference.pool import ConnectionPool, NotConnected
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.domain.outcomes import ErrorKind, Outcome

_COMPLETED, _ERRORED = int(Outcome.COMPLETED), int(Outcome.ERRORED)
_CANCELLED, _ABANDONED = int(Outcome.CANCELLED), int(Outcome.ABANDONED)

OnEnd = Callable[[Request, int], None]
"""Called with an ended request and its outcome. It may send the next one."""


class RequestsInFlight:
    """Counts the requests in flight and ends them."""

    def __init__(
        self,
        pool: ConnectionPool,
        records: RawRecords,
        first_set: select.epoll,
        on_end: OnEnd,
        *,
        keeps_connections: bool,
    ) -> None:
        """Idle connections are watched in `first_set`."""
        self._pool, self._records = pool, records
        self._idle = pool.idle
        self._first_set = first_set
        self._on_end = on_end
        self.keeps_connections = keeps_connections
        self.count = 0
        self.unasked = 0
        """Connections that received bytes without a request."""
        self.previous_poll_wall_ns = time_ns()
        """Time of the previous poll of the epoll set whose events are being handled. The bytes now
        read arrived after it."""

    def complete_recorded(self, conn: Connection, request: Request) -> None:
        """End a request whose successful response is recorded; its connection is idle."""
        self.count -= 1
        self._free(conn)
        self._on_end(request, _COMPLETED)

    def complete(self, conn: Connection, end_wall_ns: int, *, may_reuse: bool) -> None:
        """End a request with a complete successful response."""
        self._end(conn, _COMPLETED, ErrorKind.NONE, end_wall_ns, may_reuse=may_reuse)

    def complete_at_done(self, conn: Connection, free_wall_ns: int) -> None:
        """End a request whose stream is complete but whose framing is not. Its connection drains,
        unless it cannot carry another request. The user may continue at `free_wall_ns`."""
        self._end(conn, _COMPLETED, ErrorKind.NONE, free_wall_ns, is_done=True)

    def free_drained(self, conn: Connection) -> None:
        """Make a connection with a complete framing available."""
        conn.become_idle()
        self._free(conn)

    def complete_with_error_status(
        self, conn: Connection, end_wall_ns: int, *, may_reuse: bool
    ) -> None:
        """End a request whose complete response has an error status."""
        self._end(conn, _ERRORED, ErrorKind.STATUS, end_wall_ns, may_reuse=may_reuse)

    def cancel(self, conn: Connection, message: str) -> None:
        """End a request with an incomplete response, and drop its connection."""
        self._end(conn, _CANCELLED, ErrorKind.NONE, time_ns(), message)

    def abandon(self, conn: Connection) -> None:
        """End a request that its client abandons, and drop its connection."""
        self._end(conn, _ABANDONED, ErrorKind.NONE, time_ns())

    def fail(self, conn: Connection, kind: ErrorKind, message: str) -> None:
        """Drop a connection. Its request, if any, ends with this error."""
        if conn.request is None:
            self._pool.drop(conn)
        else:
            self._end(conn, _ERRORED, kind, time_ns(), message)

    def fail_unconnected(self, request: Request, why: NotConnected) -> None:
        """End a request without a connection, because none could be tried."""
        self.count -= 1
        request.end_wall_ns = time_ns()
        self._records.end(request, _ERRORED, int(why.kind), why.reason.encode())
        self._on_end(request, _ERRORED)

    def revoke(self, conn: Connection) -> None:
        """Remove the request that waits for a connection, without a record."""
        conn.request = None
        self.count -= 1
        self._pool.drop(conn)

    def _end(
        self,
        conn: Connection,
        outcome: int,
        error: ErrorKind,
        end_wall_ns: int,
        message: str = "",
        *,
        may_reuse: bool = False,
        is_done: bool = False,
    ) -> None:
        request = conn.request
        assert request is not None
        done_wall_ns = request.end_wall_ns
        end_of_record = done_wall_ns if is_done else end_wall_ns
        if done_wall_ns and outcome != _COMPLETED:
            # The stream is complete, so later events of its connection do not matter.
            outcome, error, message = _COMPLETED, ErrorKind.NONE, ""
            end_of_record = done_wall_ns
        if not request.was_written:
            request.connect_ns, request.tls_ns = conn.connect_ns, conn.tls_ns
        request.end_wall_ns = end_of_record
        self._records.end(request, outcome, int(error), message.encode())
        # The time at which its user may continue.
        request.end_wall_ns = end_wall_ns
        self.count -= 1
        if may_reuse:
            conn.become_idle()
            self._free(conn)
        elif is_done and conn.keep_alive and self.keeps_connections:
            conn.request, conn.state = None, DRAINING
        else:
            conn.request = None
            self._pool.drop(conn)
        self._on_end(request, outcome)

    def _free(self, conn: Connection) -> None:
        """Make an idle connection available, unless each request has a new one."""
        if not self.keeps_connections:
            self._pool.drop(conn)
            return
        if conn.epoll is not self._first_set:
            conn.watch_in(self._first_set)
        self._idle.append(conn)
