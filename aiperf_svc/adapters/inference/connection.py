"""State of one connection of the inference client, and of the request on it."""

import select
import socket
from typing import Any, Final

from aiperf_svc.adapters.inference.tls_stream import TlsStream
from aiperf_svc.core.load.target_addresses import TargetAddress

CONNECTING: Final = 0
HANDSHAKING: Final = 1
IDLE: Final = 2
"""The connection carries no request."""
HEAD: Final = 3
"""The request is written, and the headers of the response are incomplete."""
BODY: Final = 4


try:
    from aiperf_svc.adapters.inference._stamped_reads import Fields
except ImportError:

    class Fields:  # type: ignore[no-redef]  # no C compiler was there
        """Fields that the compiled steps read and write without a look-up by name."""

        __slots__ = (
            "ack",
            "body_offset",
            "buffer",
            "bytes_in",
            "bytes_out",
            "connect_ns",
            "due",
            "entry",
            "fd",
            "flags",
            "framing",
            "index",
            "input_tokens",
            "is_used",
            "keep_alive",
            "kept",
            "left",
            "line",
            "opened_mono_ns",
            "part",
            "payload",
            "phase",
            "read_rows",
            "request_id",
            "requested_tokens",
            "requests",
            "sent",
            "session",
            "start",
            "started_mono_ns",
            "state",
            "status",
            "tls",
            "tls_ns",
            "turn",
            "unsent",
        )


class Connection(Fields):
    """A socket and the request that it carries."""

    __slots__ = ("address", "epoll", "moves", "sock")

    def __init__(self, sock: socket.socket | None) -> None:
        """Without a socket it only carries a request that could not even be tried to its record."""
        self.sock: Any = sock
        self.fd = -1 if sock is None else sock.fileno()
        self.state = CONNECTING
        self.address: TargetAddress = None  # type: ignore[assignment]
        """Address of the peer, if the connection has a socket."""
        self.requests = 0
        """Requests written on it."""
        self.moves = 0
        """Addresses that its first request has been moved away from."""
        self.epoll: select.epoll = None  # type: ignore[assignment]
        """The set that watches it, as long as it has a socket."""
        self.is_used = False
        self.opened_mono_ns = self.started_mono_ns = 0
        self.connect_ns = self.tls_ns = 0
        self.payload: bytes | None = None
        """None without a request; empty once its response has begun, since then it is never sent
        again, and prompts would be most of what held connections take."""
        self.unsent: memoryview | None = None
        # Bytes while there is one read, a bytearray from the second on.
        self.buffer: Any = None
        self.read_rows: Any = None
        self.kept: bytearray | None = None
        self.session: Any = None
        self.tls: TlsStream | None = None
        self.line = b""
        self.request_id = self.index = self.due = self.start = self.sent = self.ack = 0
        self.bytes_in = self.bytes_out = self.body_offset = self.framing = self.left = 0
        self.entry = self.turn = self.part = self.phase = self.status = self.flags = 0
        self.input_tokens = self.requested_tokens = -1
        self.keep_alive = True

    def become_idle(self) -> None:
        """Reset the connection for the next request."""
        self.payload = None
        self.state = IDLE
        if not self.is_used:
            self.is_used = True
            self.connect_ns = self.tls_ns = 0
