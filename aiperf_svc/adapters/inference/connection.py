"""State of one connection of the inference client."""

import select
import socket
from typing import TYPE_CHECKING, Final

from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.tls_stream import Stream
from aiperf_svc.core.load.target_addresses import TargetAddress

CONNECTING: Final = 0
HANDSHAKING: Final = 1
IDLE: Final = 2
"""The connection can carry a request, but has none."""
HEAD: Final = 3
"""The request is written, and the headers of the response are incomplete."""
BODY: Final = 4
CLOSED: Final = 5
"""The pool has dropped the connection."""
DRAINING: Final = 6
"""The response has ended with `[DONE]`, but its framing is incomplete."""

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT

try:
    from aiperf_svc.adapters.inference import _stamped_reads as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # built without a C compiler


class PlainConnectionFields:
    """The fields of a connection without the compiled steps."""

    __slots__ = (
        "connect_ns",
        "fd",
        "in_trailers",
        "is_used",
        "keep_alive",
        "left",
        "line",
        "opened_mono_ns",
        "request",
        "requests",
        "state",
        "tls",
        "tls_ns",
        "unsent",
    )

    connect_ns: int
    fd: int
    in_trailers: bool
    is_used: bool
    keep_alive: bool
    left: int
    line: bytes
    opened_mono_ns: int
    request: Request | None
    requests: int
    state: int
    tls: Stream | None
    tls_ns: int
    unsent: memoryview | None


if TYPE_CHECKING or compiled is None:
    ConnectionFields = PlainConnectionFields
else:
    ConnectionFields = compiled.ConnectionFields
    """The same fields. The compiled steps access them without a lookup by name."""


class Connection(ConnectionFields):
    """A socket, its current request, and the state of the response's framing."""

    __slots__ = (
        "address",
        "epoll",
        "handshake_rtt_ns",
        "made_in_ns",
        "sock",
        "waiting_since_mono_ns",
    )

    def __init__(
        self,
        sock: socket.socket,
        address: TargetAddress,
        epoll: select.epoll,
        *,
        opened_mono_ns: int,
    ) -> None:
        """`epoll` watches the connection, which is connecting."""
        self.sock = sock
        self.address = address
        self.epoll = epoll
        """The epoll set that watches it until it is closed."""
        self.fd = sock.fileno()
        self.state = CONNECTING
        self.opened_mono_ns = self.waiting_since_mono_ns = opened_mono_ns
        """Start of the connect, and start of a request's wait for it. The wait starts later if the
        connection was opened in advance, and earlier if the request had another connection
        before."""
        self.made_in_ns = 0
        """Duration of the connect."""
        self.connect_ns = self.tls_ns = 0
        """How long the first request waited for the connect and for the TLS handshake."""
        self.handshake_rtt_ns = 0
        """Round-trip time of the TCP handshake by the kernel; 0 if unknown."""
        self.requests = 0
        """Number of requests written on it."""
        self.is_used = False
        """Whether a response has ended on it."""
        self.request = None
        """The request that waits for the connection, is written on it, or receives its response."""
        self.unsent = None
        """Bytes that the kernel has not accepted yet."""
        self.tls = None
        self.keep_alive = True
        """Whether the server keeps the connection open after the response."""
        self.left = 0
        """Missing bytes of the body, or of the chunk and the line end after it."""
        self.line = b""
        """The start of an incomplete framing line."""
        self.in_trailers = False
        """Whether the last chunk has arrived without the empty line after it."""

    @property
    def is_open(self) -> bool:
        return self.state != CLOSED

    @property
    def is_being_made(self) -> bool:
        """Return whether the connection cannot carry a request yet."""
        return self.state in (CONNECTING, HANDSHAKING)

    @property
    def may_reuse(self) -> bool:
        """Return whether another request may follow, as far as the connection knows. None may
        follow if the response came before the whole request was written."""
        return self.unsent is None and (self.tls is None or self.tls.may_reuse)

    def count_from_wait(self) -> None:
        """Measure connect and handshake from the start of the request's wait. This excludes the
        time before the wait and includes the time of earlier connections that failed."""
        ahead_ns = self.waiting_since_mono_ns - self.opened_mono_ns
        self.tls_ns -= min(self.tls_ns, max(0, ahead_ns - self.connect_ns))
        self.connect_ns -= min(self.connect_ns, ahead_ns)

    def become_idle(self) -> None:
        """Reset the connection for the next request."""
        self.request = None
        self.state = IDLE
        self.is_used = True

    def watch_in(self, epoll: select.epoll) -> None:
        """Move the connection to another epoll set."""
        self.epoll.unregister(self.fd)
        self.epoll = epoll
        epoll.register(self.fd, _IN if self.unsent is None else _IN | _OUT)

    def wait_to_write(self, unsent: memoryview) -> None:
        """Keep bytes until the kernel accepts them."""
        self.unsent = unsent
        self.epoll.modify(self.fd, _IN | _OUT)
