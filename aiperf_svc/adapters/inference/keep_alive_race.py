"""Decides whether a server's close crossed a request, which then may be sent again.

A server that closes an idle connection may do so while the next request is on its way to it. It has
not read that request, so sending it again measures nothing twice. Such a close was sent before the
request arrived, so it is here within one round trip of the write. A later one is the server's
response to the request: it took the request, and dropped it.

Two things widen the bound. The round trip of one moment is longer than the shortest one by the
queues on the path. And a server's program decides to close a moment before its kernel does so, and
requests that arrive in between are thrown away unread: an event loop takes milliseconds for that.
"""

import socket
import struct
from typing import Final

PATH_JITTER: Final = 0.25
"""Share of the shortest round trip that queues on a path add to it as a rule."""
SERVER_MARGIN_NS: Final = 5_000_000
"""From a server's decision to close to the close itself. Requests that a server drops sooner than
this after reading them are retried too; the accounts and the verdict say how many they were."""

_TCP_INFO_BYTES: Final = 152
_MIN_RTT_AT: Final = 148
"""Offset of `tcpi_min_rtt`, in microseconds, in Linux's `struct tcp_info`."""
_UNKNOWN: Final = 0xFFFFFFFF


def race_window_ns(sock: socket.socket) -> int:
    """Return the longest time from the write of a request to a close that may have crossed it. It
    counts the shortest round trip that the kernel has seen on this connection, if it says one."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    round_trip_us = 0
    if len(info) == _TCP_INFO_BYTES:
        round_trip_us = struct.unpack_from("=I", info, _MIN_RTT_AT)[0]
        if round_trip_us == _UNKNOWN:
            round_trip_us = 0
    return round(round_trip_us * 1_000 * (1 + PATH_JITTER)) + SERVER_MARGIN_NS
