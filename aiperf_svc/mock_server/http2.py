"""Translates between HTTP/2 with a client and HTTP/1.1 with the server behind it (RFC 9113).

A connection that starts with HTTP/2's preface is translated: the bytes of complete HTTP/1.1
requests come out, and the bytes of responses go in, in the order of the requests. So a server
serves one stream of a connection at a time, and its delays, faults and accounts are those of
HTTP/1.1. Any other connection is passed through unchanged.
"""

import socket
import ssl
import struct
from collections import deque
from functools import lru_cache
from typing import Any

from aiperf_svc.mock_server.requests import MAX_BODY, MAX_HEAD

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ALPN = ["h2", "http/1.1"]
_HEADER = struct.Struct(">IBI")
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_DEFAULT_WINDOW, _MAX_WINDOW, _MAX_FRAME = 65_535, 2**31 - 1, 16_384
_RENEW_WINDOW_AT = 2**20
_HOP_HEADERS = frozenset((b"connection", b"keep-alive", b"transfer-encoding"))
"""HTTP/1.1 headers that HTTP/2 forbids."""
_DROPPED_HEADERS = frozenset((b"content-length", b"expect", b"te"))
"""Request headers that the translation sets itself, or that request unsupported features."""


class Http2Error(ConnectionError):
    """Raised when a client violates the protocol or leaves its request. Closes the connection."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def _window_update(increment: int) -> bytes:
    return frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", increment))


@lru_cache(maxsize=1024)
def header_block(head: bytes) -> tuple[int, int, bytes]:
    """Return the status, body length (-1: chunked) and header block of an HTTP/1.1 response.

    Fields are literals that are never indexed (RFC 7541, section 6.2.3), so a block is the same on
    every connection.
    """
    first, *lines = head.split(b"\r\n")
    status = first.split(b" ")[1]
    fields, length = [(b":status", status)], 0
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if name == b"transfer-encoding":
            length = -1
        elif name == b"content-length" and value.isdigit():
            length = int(value)
        if name not in _HOP_HEADERS:
            fields.append((name, value))
    block = b"".join(b"\x10" + _literal(name) + _literal(value) for name, value in fields)
    return int(status), length, block


def _literal(text: bytes) -> bytes:
    """Return a string without Huffman coding, after its length (RFC 7541, sections 5.1 and 5.2)."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    length -= 127
    coded = bytearray([127])
    while length >= 128:
        coded.append(length & 127 | 128)
        length >>= 7
    coded.append(length)
    return bytes(coded) + text


class _Request:
    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        pseudo = {name: value for name, value in fields if name.startswith(b":")}
        lines = [
            name + b": " + value
            for name, value in fields
            if not name.startswith(b":") and name not in _DROPPED_HEADERS
        ]
        method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        host = b"host: " + pseudo.get(b":authority", b"")
        self.head = b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), host, *lines])
        self.body = bytearray()

    def whole(self) -> bytes:
        return b"%b\r\ncontent-length: %d\r\n\r\n" % (self.head, len(self.body)) + self.body


class Http2Session:
    """The two directions of one connection, without I/O."""

    def __init__(self) -> None:
        # Imported here because it takes a third of a server's start time, and few servers use
        # HTTP/2.
        import hpack

        self._decoder = hpack.Decoder()
        self._not_decoded = hpack.HPACKError
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _MAX_WINDOW)
        self._out = bytearray(
            frame(_SETTINGS, 0, 0, settings) + _window_update(_MAX_WINDOW - _DEFAULT_WINDOW)
        )
        self._rest = b""
        self._block = b""
        self._block_of: tuple[int, int] | None = None
        """Stream and flags of an incomplete header block."""
        self._to_acknowledge = 0
        self._requests: dict[int, _Request] = {}
        self._unserved: deque[int] = deque()
        """Streams whose responses have not ended, in the order of their requests."""
        self._window = self._initial_window = _DEFAULT_WINDOW
        self._windows: dict[int, int] = {}
        self._max_frame = _MAX_FRAME
        self._held: deque[tuple[int, bytes, bool]] = deque()
        """Parts of bodies that wait for a window, by stream, with whether they are the last."""
        self._response = bytearray()
        self._has_head = False
        self._length = 0
        """Remaining bytes of the body; -1 at the start of a chunk."""
        self._is_chunked = False

    def to_send(self) -> bytes:
        """Return the bytes that may be sent now."""
        while self._held:
            stream, part, is_last = self._held[0]
            room = min(self._window, self._windows.get(stream, 0), self._max_frame)
            if room <= 0 and part:
                break
            taken, left = part[: max(room, 0)], part[max(room, 0) :]
            self._window -= len(taken)
            self._windows[stream] = self._windows.get(stream, 0) - len(taken)
            flags = _END_STREAM if is_last and not left else 0
            self._out += frame(_DATA, flags, stream, taken)
            if left:
                self._held[0] = stream, left, is_last
            else:
                self._held.popleft()
                if is_last:
                    self._windows.pop(stream, None)
        out = bytes(self._out)
        self._out.clear()
        return out

    # Requests

    def receive(self, data: bytes) -> bytes:
        """Process bytes after the preface; return completed requests. Raises Http2Error."""
        data = self._rest + data
        at, found = 0, []
        while len(data) - at >= _HEADER.size:
            word, flags, stream = _HEADER.unpack_from(data, at)
            length, kind = word >> 8, word & 255
            if length > _MAX_FRAME:
                raise Http2Error(f"a frame of {length} bytes")
            end = at + _HEADER.size + length
            if end > len(data):
                break
            payload, at = data[at + _HEADER.size : end], end
            found.append(self._take(kind, flags, stream & _MAX_WINDOW, payload))
        self._rest = data[at:]
        return b"".join(found)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        """Process a frame; return the request that ends with it, if any."""
        if kind == _DATA:
            return self._handle_data(flags, stream, payload)
        if kind in (_HEADERS, _CONTINUATION):
            return self._handle_block(kind, flags, stream, payload)
        if kind == _SETTINGS and not flags & _ACK:
            self._handle_settings(payload)
        elif kind == _WINDOW_UPDATE and len(payload) == 4:
            increment = int.from_bytes(payload) & _MAX_WINDOW
            if stream == 0:
                self._window += increment
            elif stream in self._windows:
                self._windows[stream] += increment
        elif kind == _PING and not flags & _ACK:
            self._out += frame(_PING, _ACK, 0, payload)
        elif kind == _RST_STREAM and (stream in self._requests or stream in self._unserved):
            raise Http2Error("the client has left its request")
        return b""

    def _handle_settings(self, payload: bytes) -> None:
        if len(payload) % 6:
            raise Http2Error("a SETTINGS frame")
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW_SIZE:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial_window
                self._initial_window = value
            elif name == _MAX_FRAME_SIZE:
                self._max_frame = min(value, _MAX_FRAME)
        self._out += frame(_SETTINGS, _ACK, 0)

    def _handle_block(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == _HEADERS:
            payload = _unpadded(flags, payload)
            if flags & _PRIORITY:
                payload = payload[5:]
            self._block, self._block_of = b"", (stream, flags)
        self._block += payload
        if self._block_of is None or self._block_of[0] != stream or len(self._block) > MAX_HEAD:
            raise Http2Error("a header block")
        if not flags & _END_HEADERS:
            return b""
        is_end = bool(self._block_of[1] & _END_STREAM)
        self._block_of = None
        try:
            fields: list[tuple[Any, Any]] = list(self._decoder.decode(self._block, raw=True))
        except self._not_decoded as error:
            raise Http2Error(str(error)) from error
        if stream not in self._requests:  # otherwise these are trailers
            self._requests[stream] = _Request([(bytes(n), bytes(v)) for n, v in fields])
            self._windows[stream] = self._initial_window
        return self._ended(stream) if is_end else b""

    def _handle_data(self, flags: int, stream: int, payload: bytes) -> bytes:
        self._to_acknowledge += len(payload)
        if self._to_acknowledge >= _RENEW_WINDOW_AT:
            self._out += _window_update(self._to_acknowledge)
            self._to_acknowledge = 0
        request = self._requests.get(stream)
        if request is None:
            raise Http2Error("DATA of no request")
        request.body += _unpadded(flags, payload)
        if len(request.body) > MAX_BODY:
            raise Http2Error(f"a body of over {MAX_BODY} bytes")
        return self._ended(stream) if flags & _END_STREAM else b""

    def _ended(self, stream: int) -> bytes:
        self._unserved.append(stream)
        return self._requests.pop(stream).whole()

    # Responses

    def respond(self, data: bytes | memoryview) -> None:
        """Process bytes of responses, which may end anywhere."""
        if self._length < 0 and not self._response:
            # One complete chunk, like nearly every write of a stream.
            size, _, rest = bytes(data[:10]).partition(b"\r\n")
            length = _chunk_length(size) if rest else 0
            if length and len(data) == len(size) + length + 4:
                part = bytes(data[len(size) + 2 : -2])
                self._held.append((self._unserved[0], part, False))
                return
        self._response += data
        while self._unserved and self._response and self._respond_next():
            pass

    def _respond_next(self) -> bool:
        """Forward the next part of the response; return False if more of it is needed."""
        response, stream = self._response, self._unserved[0]
        if not self._has_head:
            end = response.find(b"\r\n\r\n")
            if end < 0:
                return False
            status, length, block = header_block(bytes(response[:end]))
            del response[: end + 4]
            flags = _END_HEADERS | (_END_STREAM if status >= 200 and not length else 0)
            self._out += frame(_HEADERS, flags, stream, block)
            if status >= 200:
                self._has_head, self._is_chunked, self._length = True, length < 0, length
                if not length:
                    self._end()
            return True
        if self._is_chunked and self._length < 0:
            end = response.find(b"\r\n")
            if end < 0:
                return False
            self._length = _chunk_length(bytes(response[:end]))
            del response[: end + 2]
            return True
        if self._is_chunked and not self._length:
            if len(response) < 2:
                return False
            del response[:2]  # the end of the last chunk, which nothing follows
            self._held.append((stream, b"", True))
            self._end()
            return True
        return self._respond_body(stream)

    def _respond_body(self, stream: int) -> bool:
        response = self._response
        part = bytes(response[: self._length])
        is_rest = len(part) == self._length
        if self._is_chunked and is_rest and len(response) < self._length + 2:
            return False
        del response[: len(part)]
        self._length -= len(part)
        self._held.append((stream, part, is_rest and not self._is_chunked))
        if is_rest and self._is_chunked:
            del response[:2]
            self._length = -1
        elif is_rest:
            self._end()
        return True

    def _end(self) -> None:
        self._unserved.popleft()
        self._has_head, self._length = False, 0


def _chunk_length(text: bytes) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise Http2Error(f"no length of a chunk: {text[:20]!r}") from None


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error("padding")
    return payload[1 : len(payload) - payload[0]]


class Http2Socket:
    """A client's socket that looks as if all clients used HTTP/1.1."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._first = b""
        """Bytes received before it is known whether the connection uses HTTP/2."""
        self._is_known = False
        self._session: Http2Session | None = None
        self._unsent = b""
        """Bytes that the kernel did not accept."""
        self._is_last_byte_owed = False
        """Whether the last `send` has held back a byte from its count, so its caller calls again
        when the kernel accepts more."""

    def fileno(self) -> int:
        return self._sock.fileno()

    def setsockopt(self, level: int, name: int, value: bytes) -> None:
        self._sock.setsockopt(level, name, value)

    def close(self) -> None:
        self._sock.close()

    def pending(self) -> int:
        """Return the number of bytes that TLS has already decrypted; `recv` leaves none."""
        return 0

    def recv(self, size: int) -> bytes:
        """Return received bytes as HTTP/1.1. Raises BlockingIOError if there are none yet."""
        data = self._sock.recv(size)
        pending = getattr(self._sock, "pending", None)
        while data and pending is not None and pending():
            data += self._sock.recv(size)
        return self._taken(data)

    def recvmsg(self, size: int, ancillary: int) -> tuple[bytes, list[Any], int, Any]:
        """Like `recv`, with the ancillary data of the last read."""
        data, control, flags, address = self._sock.recvmsg(size, ancillary)
        return self._taken(data), control, flags, address

    def send(self, data: bytes | memoryview) -> int:
        """Send bytes of a response; return how many the caller need not pass again."""
        session = self._session
        if session is None:
            return self._sock.send(data)
        if self._unsent and not self._flush(session):
            raise BlockingIOError
        if self._is_last_byte_owed:
            self._is_last_byte_owed = False
            return len(data)
        session.respond(data)
        if self._flush(session):
            return len(data)
        self._is_last_byte_owed = True
        return len(data) - 1

    def _taken(self, data: bytes) -> bytes:
        if not data:
            return data
        if not self._is_known:
            data = self._first + data
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                self._first = data
                raise BlockingIOError
            self._is_known, self._first = True, b""
            if data.startswith(PREFACE):
                self._session, data = Http2Session(), data[len(PREFACE) :]
        if self._session is None:
            return data
        requests = self._session.receive(data)
        self._flush(self._session)
        if not requests:
            raise BlockingIOError
        return requests

    def _flush(self, session: Http2Session) -> bool:
        """Send what may be sent; return False if the kernel has not accepted all of it."""
        self._unsent += session.to_send()
        if self._unsent:
            try:
                sent = self._sock.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            self._unsent = self._unsent[sent:]
        return not self._unsent
