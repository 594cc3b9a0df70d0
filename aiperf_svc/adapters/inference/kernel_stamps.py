"""Makes sure that the kernel's receive timestamps can be relied on.

The kernel stamps packets only while some socket asks for it. It starts in a work item of its own,
microseconds to milliseconds after the first such socket was made, and stops with the last. A
response that arrives in between has no stamp. `KernelStamps` asks first, waits until packets are
stamped, and keeps stamping on for as long as it is open.
"""

import select
import socket
import struct
from contextlib import suppress
from time import monotonic_ns, time_ns
from typing import Final

SO_TIMESTAMPNS: Final = 35

_TIMESPEC: Final = struct.Struct("@ll")
_STARTS_WITHIN_NS: Final = 200_000_000
"""A busy machine runs the work item within some milliseconds."""


class KernelStamps:
    """Keeps the kernel stamping what sockets with `SO_TIMESTAMPNS` receive, until `close`."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.has_started = False
        """Packets are stamped; False where the machine's loopback cannot show it."""
        with suppress(OSError):  # no IPv4 loopback: reads without a stamp are flagged and counted
            self._wait()

    def fileno(self) -> int:
        """Return the descriptor that keeps the kernel stamping."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let the kernel stop, if no other socket asks for stamps."""
        self._socket.close()

    def _wait(self) -> None:
        own = self._socket
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        own.setblocking(False)
        give_up = monotonic_ns() + _STARTS_WITHIN_NS
        while not self.has_started and monotonic_ns() < give_up:
            own.send(b"x")
            if select.select([own], [], [], _STARTS_WITHIN_NS / 1e9)[0]:
                readable = time_ns()
                # A datagram without a stamp gets the time of its reading in place of one: only a
                # stamp from before the reading is the kernel's own.
                self.has_started = any(
                    _wall_ns(data) <= readable for _, _, data in own.recvmsg(1, 64)[1]
                )


def _wall_ns(timespec: bytes) -> int:
    seconds, nanoseconds = _TIMESPEC.unpack_from(timespec)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
