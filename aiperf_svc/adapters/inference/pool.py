"""Pools the connections to one target: idle ones, ones opened in advance, new ones, and probes of
addresses that are down.

Connecting does not block: the descriptor becomes writable in the given epoll set when the attempt
has ended. A broken connection is removed at once, and its socket is closed later.
"""

import errno
import fcntl
import os
import resource
import select
import socket
import struct
from collections import deque
from contextlib import suppress
from time import monotonic_ns, time_ns
from typing import Final, NamedTuple

from aiperf_svc.adapters.inference.connection import CLOSED, CONNECTING, Connection
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.adapters.inference.tcp_info import NetworkTimes
from aiperf_svc.core.load.target_addresses import TargetAddress, TargetAddresses
from aiperf_svc.domain.outcomes import ErrorKind

FD_TABLE_SIZE: Final = 65_536
"""Initial size of the descriptor table: half a megabyte of kernel memory."""
CONNECTING_AT_ONCE: Final = 256
"""Maximum number of simultaneous connects in advance."""

SO_TIMESTAMPNS: Final = 35
_IP_BIND_ADDRESS_NO_PORT: Final = 24
_TIMESPEC: Final = struct.Struct("@ll")
_STAMPS_START_WITHIN_NS: Final = 200_000_000
"""Longest wait for the first timestamp. Even a busy machine needs only milliseconds."""
_OUT_OF_SOCKETS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS)
"""Errors that would occur with any other address too."""
_OWN_LIMITS: Final = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)


class NotConnected(NamedTuple):
    """Reason why no connection could be tried."""

    code: int
    """An errno."""
    reason: str

    @property
    def kind(self) -> ErrorKind:
        """Return the error of a request that waited for a connection."""
        return _error_kind(self.code)


class KernelStamps:
    """Keeps the kernel's packet timestamps enabled until `close`.

    The kernel timestamps packets only while some socket has `SO_TIMESTAMPNS`. It starts to do so in
    a work item, microseconds to milliseconds after the first such socket is opened, and stops with
    the last one. A response that arrives in between has no timestamp. So this class opens a socket
    first and waits until its packets have timestamps.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.has_started = False
        """Whether packets are known to have timestamps. False if the loopback cannot show it."""
        with suppress(OSError):  # no IPv4 loopback: reads without a timestamp are counted
            self._wait()

    def fileno(self) -> int:
        """Return the descriptor that keeps timestamps enabled."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let the kernel stop timestamping, unless another socket requests it."""
        self._socket.close()

    def _wait(self) -> None:
        own = self._socket
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        own.setblocking(False)
        give_up, is_last = monotonic_ns() + _STAMPS_START_WITHIN_NS, False
        while not (self.has_started or is_last):
            # The kernel may have started while this process was not scheduled.
            is_last = monotonic_ns() >= give_up
            own.send(b"x")
            if select.select([own], [], [], _STAMPS_START_WITHIN_NS / 1e9)[0]:
                readable = time_ns()
                # A datagram without a timestamp gets the time of the read instead. Only a timestamp
                # before the read is the kernel's own.
                self.has_started = any(
                    _wall_ns(data) <= readable for _, _, data in own.recvmsg(1, 64)[1]
                )


class ConnectionPool:
    """Creates, lends and drops connections. A caller that takes one from `idle` returns it."""

    def __init__(self, target: Target, epoll: select.epoll) -> None:
        self.addresses = TargetAddresses(target.addresses)
        self._epoll = epoll
        self.by_fd: dict[int, Connection] = {}
        """All open connections, including connecting ones."""
        self.idle: list[Connection] = []
        """Idle connections; some may have broken since."""
        self.closing: list[socket.socket] = []
        """Sockets of dropped connections; see `close_sockets`."""
        self.wanted = 0
        """Number of connections that `preconnect` still has to open."""
        self._spare: list[Connection] = []
        """Connections opened in advance. Those that have become idle or broken are skipped."""
        self._connecting = 0
        self._has_refused = False
        self._attempts: deque[Connection] = deque()
        """Connect attempts, oldest first. Some of them have ended."""
        self._probes: dict[TargetAddress, Connection] = {}
        """The last probe of each address that was down."""
        self.network_times = NetworkTimes()
        self._stamps = KernelStamps()
        _grow_fd_table(self._stamps.fileno())

    def spare_or_new(self) -> Connection | NotConnected:
        """Return a connecting connection: one opened in advance, or a new one."""
        while self._spare:
            conn = self._spare.pop()
            if conn.is_being_made and (not conn.address.is_down or not self.addresses.has_up):
                conn.waiting_since_mono_ns = monotonic_ns()
                return conn
        return self.new()

    def new(self) -> Connection | NotConnected:
        """Start to connect to the next usable address."""
        addresses = self.addresses
        while True:
            made = self._open(addresses.next())
            if isinstance(made, Connection) or made.code in _OUT_OF_SOCKETS:
                return made
            if not addresses.has_up:
                return made

    def _open(self, address: TargetAddress) -> Connection | NotConnected:
        began = monotonic_ns()
        try:
            sock = _begin_connect(address)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno not in _OUT_OF_SOCKETS:
                self.addresses.failed(address, reason, began=began, now=began)
                reason = self.connect_message(address)
            return NotConnected(error.errno or 0, reason)
        conn = Connection(sock, address, self._epoll, opened_mono_ns=began)
        self.by_fd[conn.fd] = conn
        self._connecting += 1
        if len(self.addresses.in_use) > 1:
            self._attempts.append(conn)
        self._epoll.register(conn.fd, select.EPOLLOUT)
        return conn

    def connected(self, conn: Connection) -> ErrorKind:
        """Handle the result of a connect attempt. On an error, the caller drops the connection."""
        code: int = conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.failed(conn, os.strerror(code))
            return _error_kind(code)
        self._connecting -= 1
        now = monotonic_ns()
        conn.made_in_ns = conn.connect_ns = now - conn.opened_mono_ns
        self.addresses.connected(conn.address, began=conn.opened_mono_ns, now=now)
        self.network_times.made(conn)
        conn.epoll.modify(conn.fd, select.EPOLLIN)
        return ErrorKind.NONE

    def failed(self, conn: Connection, reason: str) -> None:
        began = conn.opened_mono_ns
        self.addresses.failed(conn.address, reason, began=began, now=monotonic_ns())
        if not self.addresses.has_up:
            self._refused()

    def connect_message(self, address: TargetAddress) -> str:
        """Return the reason why a request got no connection; this address was tried last."""
        count = len(self.addresses.in_use)
        message = f"{address.place}: {address.error}"
        if count > 1 and not self.addresses.has_up:
            message += f" (all {count} addresses of the target are down)"
        return message

    def overdue(self) -> list[Connection]:
        """Return overdue attempts, each once, and mark their addresses as down."""
        attempts, addresses, now = self._attempts, self.addresses, monotonic_ns()
        waits_ns = addresses.fallback_ns
        found = []
        while attempts:
            conn = attempts[0]
            if conn.state == CONNECTING:
                if now - conn.opened_mono_ns < waits_ns:
                    break
                began = conn.opened_mono_ns
                if addresses.is_silent(conn.address, began=began):
                    if not conn.address.is_down:
                        reason = f"silent for {waits_ns / 1e6:.0f} ms"
                        addresses.failed(conn.address, reason, began=began, now=now)
                    found.append(conn)
            attempts.popleft()
        return found

    def keep_as_probe(self, conn: Connection) -> None:
        """Keep an overdue attempt without a request as a probe, one per address."""
        probe = self._probes.get(conn.address)
        if probe is None or not probe.is_open:
            self._probes[conn.address] = conn
        elif probe is not conn:
            self.drop(conn)

    def probe(self) -> None:
        """Probe addresses that are down with connections without a request. They become idle when
        they are connected."""
        for address in self.addresses.probes(monotonic_ns()):
            before = self._probes.get(address)
            if before is None or before.state != CONNECTING:
                made = self._open(address)
                if isinstance(made, Connection):
                    self._probes[address] = made

    def requests_by_address(self) -> dict[TargetAddress, int]:
        """Return the number of requests written to each address so far. Visits every connection."""
        counts = {address: address.requests for address in self.addresses.known}
        for conn in self.by_fd.values():
            counts[conn.address] += conn.requests
        return counts

    def preconnect(self, count: int) -> bool:
        """Open connections in advance until there are `count`, so users start with a connection.

        Returns False, and does nothing, if a connect has failed since the start of the phase: an
        unreachable target is not contacted in advance.
        """
        if self._has_refused:
            return False
        self.wanted = count
        self.connect_ahead()
        return True

    def connect_ahead(self) -> None:
        """Open some of the missing connections: the loop has other work, and a server's backlog
        holds only thousands."""
        wanted = self.wanted
        while len(self.by_fd) < wanted and self._connecting < CONNECTING_AT_ONCE:
            made = self.new()
            if isinstance(made, NotConnected):
                self._refused()
                return
            self._spare.append(made)
        if len(self.by_fd) >= wanted:
            self.wanted = 0

    def reset_connect_failures(self) -> None:
        """Allow connecting in advance again after failures, because a phase starts or has ended."""
        self._has_refused = False

    def _refused(self) -> None:
        self._has_refused = True
        self.wanted = 0

    def drop(self, conn: Connection) -> None:
        """Remove a connection. Its socket is closed after the current events, so no event of this
        batch can refer to a new connection with the same descriptor."""
        if not conn.is_open:
            return
        self.by_fd.pop(conn.fd, None)
        conn.address.requests += conn.requests
        self.network_times.ended(conn)
        if conn.state == CONNECTING:
            self._connecting -= 1
        conn.epoll.unregister(conn.fd)
        self.closing.append(conn.sock)
        conn.state = CLOSED

    def close_sockets(self) -> None:
        for sock in self.closing:
            sock.close()
        self.closing.clear()

    def close(self) -> None:
        self.closing += [conn.sock for conn in self.by_fd.values()]
        self.by_fd.clear()
        self.idle.clear()
        self.close_sockets()
        self._stamps.close()


def _error_kind(code: int) -> ErrorKind:
    """Return the error kind of a failed connect by its errno."""
    return ErrorKind.NO_RESOURCES if code in _OWN_LIMITS else ErrorKind.CONNECT


def _begin_connect(address: TargetAddress) -> socket.socket:
    """Create a socket and start to connect it. Raises OSError."""
    family, socket_address, sources = address.socket_address
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if sources:
            address.next_source = (address.next_source + 1) % len(sources)
            sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((sources[address.next_source], 0))
        code = sock.connect_ex(socket_address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except OSError:
        sock.close()
        raise
    return sock


def _grow_fd_table(fd: int) -> None:
    """Grow the kernel's descriptor table of this process to its maximum size.

    The table doubles when it is full. In a process with threads, opening a descriptor then waits
    until every core has passed a grace period: 10 to 20 ms at 64, 128 and 256 connections, during
    which no request is sent.
    """
    highest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], FD_TABLE_SIZE) - 1
    with suppress(OSError):  # the descriptor exists, so the table is large enough
        os.close(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, highest))


def _wall_ns(timespec: bytes) -> int:
    seconds, nanoseconds = _TIMESPEC.unpack_from(timespec)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
