"""Where a response ends: HTTP/1.1 framing, as little of it as must be known while bytes arrive.

The bytes of heads and chunk sizes that repeat between responses are remembered: within a second
of load every head and every chunk size has been seen, and finding the end is a few look-ups.
"""

from typing import Final

from aiperf_svc.adapters.inference.connection import BODY, Connection
from aiperf_svc.adapters.inference.stamped_reads import pass_chunks
from aiperf_svc.core.responses.http1 import Head, ProtocolViolation, chunk_size, parse_head
from aiperf_svc.protocol.records import Framing

GOES_ON: Final = -1
"""Instead of an offset: the end is not there yet."""
BROKEN: Final = -2
"""Instead of an offset: this is not HTTP/1.1."""
MAX_HEAD_BYTES: Final = 65_536
MAX_CHUNK_LINE: Final = 1_024
KNOWN_HEADS: Final = 512
"""Parsed heads that are remembered, at the most."""
KNOWN_SIZES: Final = 4_096
"""Lines with chunk sizes that are remembered, at the most."""


class ResponseFraming:
    """Follows the framing of responses; what must be kept between two reads is in the
    connection."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}
        self._chunk_sizes: dict[bytes, int] = {}

    def take_head(self, conn: Connection, data: bytes, stamp: int) -> int:
        """Look for the end of the headers, then for the end of the body; as `end_of_body`."""
        offset = 0
        while True:
            end = data.find(b"\r\n\r\n", offset)
            if end < 0:
                return BROKEN if len(data) > MAX_HEAD_BYTES else GOES_ON
            raw = data[offset : end + 4]
            head = self._heads.get(raw)
            if head is None:
                try:
                    head = parse_head(raw)
                except ProtocolViolation:
                    return BROKEN
                if len(self._heads) >= KNOWN_HEADS:
                    self._heads.clear()
                self._heads[raw] = head
            offset = end + 4
            if head.status >= 200:
                break
        conn.ack = stamp
        conn.status = head.status
        conn.keep_alive = head.keep_alive
        conn.framing = head.framing
        conn.body_offset = offset
        conn.left = head.length
        conn.line = b""
        conn.state = BODY
        conn.payload = b""
        return self.end_of_body(conn, data, offset)

    def end_of_body(self, conn: Connection, data: bytes, at: int) -> int:
        """Offset in `data` just after the body, or GOES_ON, or BROKEN."""
        size = len(data)
        if conn.framing == Framing.LENGTH:
            at += conn.left
            if at <= size:
                return at
            conn.left = at - size
            return GOES_ON
        if conn.framing == Framing.UNTIL_CLOSE:
            return GOES_ON
        left, sizes, find = conn.left, self._chunk_sizes, data.find
        if conn.line:
            return self._end_of_split_line(conn, data, at)
        if left >= 0:
            at, left = pass_chunks(data, at + left), 0
        while True:
            if left > 0:
                at += left
                left = 0
            if at > size:
                conn.left = at - size
                return GOES_ON
            stop = find(b"\n", at) + 1
            if not stop:
                conn.left = left
                conn.line = data[at:]
                return BROKEN if len(conn.line) > MAX_CHUNK_LINE else GOES_ON
            line = data[at:stop]
            at = stop
            if left < 0:
                # After the last chunk: trailers, then an empty line.
                if line == b"\r\n":
                    return at
                continue
            chunk = sizes.get(line, -1)
            if chunk < 0:
                chunk = self._learn_size(line)
                if chunk < 0:
                    return BROKEN
            left = chunk + 2 if chunk else GOES_ON

    def _end_of_split_line(self, conn: Connection, data: bytes, at: int) -> int:
        """The same, when the last read ended within a line of the framing."""
        start, conn.line = conn.line, b""
        end = self.end_of_body(conn, start + data[at:], 0)
        return end if end < 0 else end - len(start) + at

    def _learn_size(self, line: bytes) -> int:
        chunk = chunk_size(line)
        if chunk >= 0 and len(self._chunk_sizes) < KNOWN_SIZES:
            self._chunk_sizes[line] = chunk
        return chunk
