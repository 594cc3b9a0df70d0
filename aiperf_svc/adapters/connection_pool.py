"""Connections to one target: idle ones, ones made ahead of need, and new ones.

A connection is made without waiting: its descriptor becomes writable, in the epoll set given, when
the attempt has ended. One that breaks is forgotten at once, and its socket closed later.
"""

import errno
import fcntl
import os
import resource
import select
import socket
from contextlib import suppress
from time import monotonic_ns
from typing import Final

from aiperf_svc.adapters.connection import CONNECTING, IDLE, Connection
from aiperf_svc.adapters.target import Target
from aiperf_svc.domain.outcomes import ErrorKind

ROOM_FOR: Final = 65_536
"""Descriptors for which there is room from the beginning: half a megabyte of the kernel's."""
CONNECTING_AT_ONCE: Final = 256
"""Connections ahead of need that are being made at a time."""

_SO_TIMESTAMPNS: Final = 35
_IP_BIND_ADDRESS_NO_PORT: Final = 24
_OWN_LIMITS: Final = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)


class ConnectionPool:
    """Makes, lends and forgets connections. Who takes an idle one from `idle` puts it back."""

    def __init__(self, target: Target, epoll: select.epoll) -> None:
        self.target = target
        self._epoll = epoll
        self.by_fd: dict[int, Connection] = {}
        """All that are open, those still connecting included."""
        self.idle: list[Connection] = []
        """Some of them may have broken since."""
        self.closing: list[socket.socket] = []
        """Of connections that are forgotten; see `close_sockets`."""
        self.wanted = 0
        """Connections that there shall be, by `preconnect`; 0 when they are there."""
        self._spare: list[Connection] = []
        """Made ahead; those that became idle or broke since are passed over."""
        self._connecting = 0
        self._has_refused = False
        self._next_source = 0
        # The kernel begins to stamp a moment after the first socket that asks for it has been made,
        # and ends with the last: this one makes sure that the first answer has its stamp.
        self._stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stamping.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        _make_room(self._stamping.fileno())

    def spare_or_new(self) -> Connection:
        """One that is being made, ahead of need or now; its `fd` is below 0 when that failed."""
        while self._spare:
            conn = self._spare.pop()
            if conn.fd >= 0 and conn.state < IDLE:
                return conn
        return self.new()

    def new(self) -> Connection:
        """One that is being made. Where not even that was possible its `fd` is below 0, with the
        reason in `line` and `status`."""
        target = self.target
        try:
            sock = socket.socket(target.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            return _never_opened(error)
        conn = Connection(sock)
        conn.opened_mono_ns = monotonic_ns()
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            if target.source_addresses:
                sources = target.source_addresses
                self._next_source = (self._next_source + 1) % len(sources)
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((sources[self._next_source], 0))
            code = sock.connect_ex(target.address)
        except OSError as error:
            sock.close()
            return _never_opened(error)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            return _never_opened(OSError(code, os.strerror(code)))
        self.by_fd[conn.fd] = conn
        self._connecting += 1
        conn.epoll = self._epoll
        self._epoll.register(conn.fd, select.EPOLLOUT)
        return conn

    def connected(self, conn: Connection) -> int:
        """The attempt of a connection has ended: 0, or an errno, and then it is to be dropped."""
        code: int = conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._refused()
            return code
        self._connecting -= 1
        conn.connect_ns = monotonic_ns() - conn.opened_mono_ns
        conn.epoll.modify(conn.fd, select.EPOLLIN)
        return 0

    def preconnect(self, count: int) -> bool:
        """Connect ahead until there are `count` connections, so that users start with them. False,
        and nothing is done, when a connect has failed since the phase began: a target that is away
        is not asked ahead of need."""
        if self._has_refused:
            return False
        self.wanted = count
        self.connect_ahead()
        return True

    def connect_ahead(self) -> None:
        """A few at a time: the loop has more to do, and a server's backlog holds thousands only."""
        wanted = self.wanted
        while len(self.by_fd) < wanted and self._connecting < CONNECTING_AT_ONCE:
            conn = self.new()
            if conn.fd < 0:
                self._refused()
                return
            self._spare.append(conn)
        if len(self.by_fd) >= wanted:
            self.wanted = 0

    def forgive(self) -> None:
        """A phase begins or has ended: connect ahead again, whatever failed before."""
        self._has_refused = False

    def _refused(self) -> None:
        self._has_refused = True
        self.wanted = 0

    def drop(self, conn: Connection) -> None:
        """Forget a connection; its socket is closed after the current events, so that no event of
        this batch can meet a new connection with the same descriptor."""
        if conn.fd < 0:
            return
        self.by_fd.pop(conn.fd, None)
        if conn.state == CONNECTING:
            self._connecting -= 1
        conn.epoll.unregister(conn.fd)
        self.closing.append(conn.sock)
        conn.fd = -1

    def close_sockets(self) -> None:
        """Close the sockets of the connections that are forgotten."""
        for sock in self.closing:
            sock.close()
        self.closing.clear()

    def close(self) -> None:
        """Close every socket."""
        self.closing += [c.sock for c in self.by_fd.values() if c.sock is not None]
        self.by_fd.clear()
        self.idle.clear()
        self.close_sockets()
        self._stamping.close()


def connect_error(code: int) -> ErrorKind:
    """Whose fault it is that a connection could not be made, by its errno."""
    return ErrorKind.NO_RESOURCES if code in _OWN_LIMITS else ErrorKind.CONNECT


def _never_opened(error: OSError) -> Connection:
    """A stand-in for a connection that could not even be tried; ends its request as an error."""
    conn = Connection(None)
    conn.line = (error.strerror or str(error)).encode()
    conn.status = error.errno or 0
    return conn


def _make_room(fd: int) -> None:
    """Have the kernel's table of this process' descriptors as large as it may get.

    It doubles when it is full, and in a process with threads whoever opens a descriptor then waits
    until every core has taken notice: 10 to 20 ms at 64, 128, 256 connections, in which no request
    leaves.
    """
    highest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], ROOM_FOR) - 1
    with suppress(OSError):  # nothing there is free, so the table is as large already
        os.close(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, highest))
