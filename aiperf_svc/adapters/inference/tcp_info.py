"""The kernel's round-trip estimates of a connection (`TCP_INFO`), and their uses: the network times
of a target, and the decision whether a server's close crossed a request.

The kernel measures the time from a segment to its acknowledgement. A delayed acknowledgement waits
up to 40 ms for data to carry it, so the smoothed estimate of a connection to a slow server consists
mostly of this delay. The shortest round trip is not affected, because the handshake's
acknowledgement is never delayed. The kernel forgets it after five minutes. Therefore it is read
when the connection has been opened, and again when the connection or the load ends.
"""

import socket
import struct
from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from aiperf_svc.adapters.inference.connection import Connection
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import HistogramDelta

MIN_RTT: Final = "network_rtt"
SMOOTHED_RTT: Final = "network_smoothed_rtt"
CONNECT: Final = "network_connect"
"""Tags of the metric catalog."""

PATH_JITTER: Final = 0.25
"""Queueing delay of a path, as a share of its shortest round trip."""
SERVER_MARGIN_NS: Final = 5_000_000
"""Time from a server's decision to close to the close itself. Requests that a server drops within
this time after reading them are retried too. The accounts and the verdict count them."""

_BYTES: Final = 152
"""Size of `struct tcp_info` in <linux/tcp.h> up to and including `tcpi_min_rtt`."""
_FIELDS: Final = struct.Struct("=68xI76xI")
"""`tcpi_rtt` and `tcpi_min_rtt` in it, in microseconds."""
_NONE: Final = 0xFFFFFFFF
"""`tcpi_min_rtt` of a connection that has measured none."""


class RoundTrip(NamedTuple):
    """The kernel's estimates of one connection; 0 if there is none."""

    smoothed_ns: int = 0
    shortest_ns: int = 0


def read_round_trip(sock: socket.socket) -> RoundTrip:
    """Return the estimates of a TCP connection, which may be broken; zeros for other sockets."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
    except OSError:
        return RoundTrip()
    if len(info) < _BYTES:  # a kernel before Linux 4.6
        return RoundTrip()
    smoothed_us, shortest_us = _FIELDS.unpack(info)
    return RoundTrip(smoothed_us * 1_000, 0 if shortest_us == _NONE else shortest_us * 1_000)


def race_window_ns(sock: socket.socket) -> int:
    """Return the longest time from the write of a request to a close that may have crossed it.

    A server that closes an idle connection may do so while the next request is in transit. It has
    not read that request, so a retry measures nothing twice. Such a close was sent before the
    request arrived, so it arrives within one round trip of the write. A later close is the server's
    response to the request.

    Two effects widen the bound. Queues on the path make a round trip longer than the shortest one.
    A server program also decides to close some time before its kernel closes; requests that arrive
    in between are dropped unread. In an event loop this takes milliseconds.
    """
    return round(read_round_trip(sock).shortest_ns * (1 + PATH_JITTER)) + SERVER_MARGIN_NS


class NetworkTimes:
    """Collects the times of the connections to one target."""

    def __init__(self) -> None:
        self._waiting = {tag: array("q") for tag in (CONNECT, MIN_RTT, SMOOTHED_RTT)}
        self._histograms = {tag: Histogram() for tag in self._waiting}

    def made(self, conn: Connection) -> None:
        """Record the handshake's round trip of a new connection."""
        conn.handshake_rtt_ns = read_round_trip(conn.sock).shortest_ns

    def ended(self, conn: Connection) -> None:
        """Record the times of a connection that ends."""
        if conn.handshake_rtt_ns:
            _add(self._waiting, conn)

    def fold(self) -> None:
        """Move the recorded times into the histograms."""
        _fold(self._waiting, self._histograms)

    def with_open(self, open_now: Iterable[Connection]) -> tuple[HistogramDelta, ...]:
        """Return the histograms of the ended connections and of these open ones."""
        self.fold()
        waiting = {tag: array("q") for tag in self._waiting}
        for conn in open_now:
            if conn.handshake_rtt_ns:
                _add(waiting, conn)
        together = {tag: Histogram() for tag in waiting}
        for tag, histogram in self._histograms.items():
            together[tag].merge(histogram.delta(phase=Phase.PROFILING, tag=tag))
        _fold(waiting, together)
        return tuple(
            histogram.delta(phase=Phase.PROFILING, tag=tag)
            for tag, histogram in together.items()
            if histogram.total
        )


def _add(waiting: "dict[str, array[int]]", conn: Connection) -> None:
    now = read_round_trip(conn.sock)
    shortest_ns = min(conn.handshake_rtt_ns, now.shortest_ns or conn.handshake_rtt_ns)
    waiting[MIN_RTT].append(shortest_ns)
    waiting[SMOOTHED_RTT].append(now.smoothed_ns or shortest_ns)
    waiting[CONNECT].append(conn.made_in_ns)


def _fold(waiting: "dict[str, array[int]]", histograms: dict[str, Histogram]) -> None:
    for tag, values in waiting.items():
        histograms[tag].add(np.array(values, dtype=np.int64))
        del values[:]
