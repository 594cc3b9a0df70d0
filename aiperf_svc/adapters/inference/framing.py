"""Finds the end of a response by the HTTP/1.1 framing, with as little parsing as possible.

Heads and chunk-size lines repeat between responses, so their meaning is cached by their bytes.
After a second of load, finding the end takes a few lookups.
"""

from typing import Final

from aiperf_svc.adapters.inference.connection import BODY, Connection
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.stamped_reads import pass_chunks
from aiperf_svc.core.responses.http1 import Head, ProtocolViolation, chunk_size, parse_head
from aiperf_svc.protocol.records import Framing

MAX_HEAD_BYTES: Final = 65_536
MAX_CHUNK_LINE: Final = 1_024
KNOWN_HEADS: Final = 512
"""Maximum number of parsed heads in the cache."""
KNOWN_SIZES: Final = 4_096
"""Maximum number of chunk-size lines in the cache."""


class HeadTooLarge(ProtocolViolation):
    """The headers do not end within `MAX_HEAD_BYTES`."""


class ResponseFraming:
    """Follows the framing of responses. The connection and its request hold the state between two
    reads. All methods return the offset just after the response, or None while it is incomplete.
    They raise ProtocolViolation for bytes that are not HTTP/1.1."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}
        self._chunk_sizes: dict[bytes, int] = {}

    def take_head(
        self, conn: Connection, request: Request, data: bytes, stamp_wall_ns: int
    ) -> int | None:
        """Find the end of the headers in `data`, then the end of the body."""
        offset = 0
        while True:
            end = data.find(b"\r\n\r\n", offset)
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise HeadTooLarge(f"headers of over {MAX_HEAD_BYTES // 2**10} KiB: cut off")
                return None
            raw = data[offset : end + 4]
            head = self._heads.get(raw)
            if head is None:
                head = parse_head(raw)
                if len(self._heads) >= KNOWN_HEADS:
                    self._heads.clear()
                self._heads[raw] = head
            offset = end + 4
            if head.status >= 200:
                break
        request.ack_wall_ns = stamp_wall_ns
        request.status = head.status
        request.framing = head.framing
        request.body_offset = offset
        request.payload = b""
        conn.keep_alive = head.keep_alive
        conn.left = head.length
        conn.line = b""
        conn.in_trailers = False
        conn.state = BODY
        return self.end_of_body(conn, request, data, offset)

    def end_of_body(self, conn: Connection, request: Request, data: bytes, at: int) -> int | None:
        size = len(data)
        if request.framing == Framing.LENGTH:
            at += conn.left
            if at <= size:
                return at
            conn.left = at - size
            return None
        if request.framing == Framing.UNTIL_CLOSE:
            return None
        if conn.line:
            # The previous read ended within a line.
            start, conn.line = conn.line, b""
            end = self._end_of_chunks(conn, start + data[at:], 0)
            return None if end is None else end - len(start) + at
        return self._end_of_chunks(conn, data, at)

    def _end_of_chunks(self, conn: Connection, data: bytes, at: int) -> int | None:
        size = len(data)
        left, in_trailers = conn.left, conn.in_trailers
        sizes, find = self._chunk_sizes, data.find
        if not in_trailers:
            at, left = pass_chunks(data, at + left), 0
            if at >= size:
                conn.left = at - size
                return None
        while True:
            at += left
            left = 0
            if at > size:
                conn.left = at - size
                return None
            stop = find(b"\n", at) + 1
            if not stop:
                conn.left, conn.in_trailers = 0, in_trailers
                conn.line = data[at:]
                if len(conn.line) > MAX_CHUNK_LINE:
                    raise ProtocolViolation("a line of the framing is too long")
                return None
            line = data[at:stop]
            at = stop
            if in_trailers:
                # The trailers end with an empty line.
                if line == b"\r\n":
                    return at
                continue
            chunk = sizes.get(line)
            if chunk is None:
                chunk = self._cache_size(line)
            if chunk:
                left = chunk + 2
            else:
                in_trailers = True

    def _cache_size(self, line: bytes) -> int:
        chunk = chunk_size(line)
        if chunk < 0:
            raise ProtocolViolation("no size of a chunk")
        if len(self._chunk_sizes) < KNOWN_SIZES:
            self._chunk_sizes[line] = chunk
        return chunk
