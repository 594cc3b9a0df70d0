"""The open connections of one serving process."""

import os
import select
import socket
import time
from collections import OrderedDict
from collections.abc import Callable

from aiperf_svc.mock_server.accounts import Account, RowOutcome
from aiperf_svc.mock_server.http2 import Http2Socket
from aiperf_svc.mock_server.serving_state import ConnectionState


class Connection(ConnectionState):
    """One open connection. It holds no buffer between requests and while it sends a reply."""

    __slots__ = ("arrival_wall_ns", "begun_ns", "is_counted", "need", "number", "out", "sock")

    def __init__(self, sock: socket.socket | Http2Socket, fd: int, number: int) -> None:
        self.sock = sock
        self.fd = fd
        self.number = number
        self.reply = None
        self.step = 0
        self.due_ns = 0
        self.begun_ns = 0  # monotonic time at which its request was complete
        self.is_counted = False  # the reply belongs to an inference request and is counted
        self.row = -1
        self.arrival_wall_ns = 0  # when the newest bytes arrived, if rows are kept
        self.inbuf = None
        self.need = 0  # bytes that inbuf must hold before it is parsed
        self.out: memoryview | None = None  # bytes that the kernel did not accept


class Connections:
    """Connections by descriptor in one epoll set. Idle ones are closed after `keepalive_ns` (0:
    never).
    """

    def __init__(self, account: Account, *, keepalive_ns: int) -> None:
        self.table: list[Connection | None] = [None] * 64
        self.epoll = select.epoll()
        self._account = account
        self._keepalive_ns = keepalive_ns
        self._idle: OrderedDict[int, int] = (
            OrderedDict()
        )  # descriptor -> time to close it, soonest first
        self._opened = 0
        self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.on_lost: Callable[[Connection], None] | None = None
        """Called with a connection that closes while its reply is being sent or waits."""

    def open(self, sock: socket.socket | Http2Socket) -> None:
        """Add a newly accepted socket."""
        account, table = self._account, self.table
        fd = sock.fileno()
        while fd >= len(table):
            table.extend([None] * len(table))
        account.connections += 1
        account.open_connections += 1
        if account.open_connections > account.max_open_connections:
            account.max_open_connections = account.open_connections
        self._opened += 1
        connection = table[fd] = Connection(sock, fd, self._opened)
        self.epoll.register(fd, select.EPOLLIN)
        self.note_idle(connection)

    def refuse(self, listener: socket.socket) -> None:
        """Close one waiting connection by using the spare descriptor, so its client is informed at
        once.
        """
        os.close(self._spare_fd)
        try:
            sock, _address = listener.accept()
            sock.close()
            self._account.refused += 1
        except OSError:
            pass  # the client has already left, or the whole system is out of file descriptors
        self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, connection: Connection) -> None:
        """Close a connection without a reply in progress."""
        self.table[connection.fd] = None
        self._idle.pop(connection.fd, None)
        connection.fd = -1
        connection.inbuf = connection.out = None
        connection.sock.close()
        self._account.open_connections -= 1

    def drop(self, connection: Connection) -> None:
        """Close a connection whose client has left; a reply in progress ends as disconnected."""
        if connection.reply is not None and connection.is_counted:
            account = self._account
            account.in_flight -= 1
            account.disconnected += 1
            if account.rows is not None:
                account.rows.close(connection.row, RowOutcome.DISCONNECTED)
        connection.reply = None
        self.close(connection)
        if self.on_lost is not None:
            self.on_lost(connection)

    def note_idle(self, connection: Connection) -> None:
        """Start the idle time of a connection that waits for its next request."""
        if self._keepalive_ns and connection.fd >= 0 and connection.reply is None:
            self._idle[connection.fd] = time.monotonic_ns() + self._keepalive_ns
            self._idle.move_to_end(connection.fd)

    def note_busy(self, connection: Connection) -> None:
        """End the idle time."""
        if self._keepalive_ns:
            self._idle.pop(connection.fd, None)

    def next_close_ns(self) -> int:
        """Monotonic time of the next idle close; 0 if there is none."""
        return next(iter(self._idle.values())) if self._idle else 0

    def close_idle(self) -> None:
        """Close every connection whose idle time has expired."""
        if not self._idle:
            return
        now_ns = time.monotonic_ns()
        while self._idle:
            fd, due_ns = next(iter(self._idle.items()))
            if due_ns > now_ns:
                return
            connection = self.table[fd]
            assert connection is not None
            self.close(connection)
