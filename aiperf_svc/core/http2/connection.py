"""An HTTP/2 client connection with one stream at a time, without I/O (RFC 9113).

Its input and output are HTTP/1.1: it takes the bytes of a request and returns those of the
response, with one chunk per DATA frame and the end at END_STREAM. So all later stages (framing,
times, events, records) are the same for both versions. The library h2 takes several times the CPU,
and ends a response that continues after a GOAWAY
(docs/decisions/0047-http2-as-a-layer-below-http1.md).

Windows for received data have the maximum size, so this client never slows a server down. Windows
for sent data are the server's, and a long request waits for them.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final

from aiperf_svc.core.http2 import frames
from aiperf_svc.core.http2.frames import frame
from aiperf_svc.domain.outcomes import ErrorKind

Fields = Iterable[tuple[bytes, bytes]]

RENEW_WINDOW_AT: Final = 2**20
"""Received bytes after which the connection's window of 2 GiB is renewed."""
MAX_BLOCK_BYTES: Final = 262_144
"""Maximum bytes of one compressed header block."""
_LAST_STREAM: Final = 2**31 - 1
_HEADER_BYTES: Final = frames.HEADER.size
_NOTHING: Final = memoryview(b"")
_DROPPED_HEADERS: Final = frozenset(
    (b"connection", b"content-length", b"keep-alive", b"proxy-connection", b"transfer-encoding")
)
"""Response headers that would contradict the framing of the HTTP/1.1 response."""
REMEDY: Final = "leave out endpoint.http2 (--http2) for a server that speaks HTTP/1.1"
_OPENING: Final = frames.PREFACE + frames.settings(
    {frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}
)
_FILL_UP: Final = frames.MAX_WINDOW - frames.DEFAULT_WINDOW


class Http2Problem(Exception):
    """Why a connection cannot be used further: text and kind."""

    def __init__(self, text: str, kind: ErrorKind, *, is_unprocessed: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_unprocessed = is_unprocessed
        """Whether the server reported that it did not process the request."""


class Http2Connection:
    """One connection. After a problem it ignores further input."""

    def __init__(self, decode: Callable[[bytes], Fields], scheme: str) -> None:
        """`decode` decodes header blocks in order, and raises ValueError."""
        self._decode, self._scheme = decode, scheme.encode()
        self._out = [_OPENING, _window_update(_FILL_UP)]
        self._rest = b""
        """The beginning of an incomplete frame."""
        self._is_going_away = False
        self.is_ready = False
        """Whether the server's settings have arrived."""
        self.problem: Http2Problem | None = None
        self._stream = -1
        """Stream of the last request."""
        self._is_active = False
        """Whether its response is incomplete."""
        self._body = _NOTHING
        """The rest of the request, which waits for the window."""
        self._window = self._initial_window = frames.DEFAULT_WINDOW
        self._connection_window = frames.DEFAULT_WINDOW
        self._max_frame = frames.SMALLEST_MAX_FRAME
        self._to_acknowledge = 0
        self._has_head = False
        self._length: int | None = None
        """Missing bytes of the body, if the response has a length."""
        self._block: bytes | None = None
        """The beginning of a header block. Its next frame must follow."""
        self._block_flags = self._block_stream = 0
        self._plain: list[bytes] = []

    @property
    def is_sending(self) -> bool:
        """Return whether a part of the request waits for the server's window."""
        return bool(self._body)

    @property
    def is_closed(self) -> bool:
        """Return whether the server accepts no more requests, and no response is incomplete."""
        return self._is_going_away and not self._is_active

    @property
    def may_reuse(self) -> bool:
        """Return whether another request may follow on this connection."""
        is_broken = self.problem is not None or self._is_going_away
        return not is_broken and not self.is_sending and self._stream < _LAST_STREAM

    def send(self, request: bytes) -> None:
        """Accept a complete HTTP/1.1 request, after the end of the previous response."""
        head, _, body = request.partition(b"\r\n\r\n")
        self._stream += 2
        self._is_active, self._has_head, self._length = True, False, None
        self._window = self._initial_window
        block = frames.request_block(head, self._scheme)
        self._out.append(
            frames.header_frames(self._stream, block, self._max_frame, is_all=not body)
        )
        self._body = memoryview(body) if body else _NOTHING

    def leave_stream(self) -> None:
        """Reset the stream of an incomplete response, and ignore the rest of the response."""
        if self._is_active:
            code = struct.pack(">I", frames.CANCEL)
            self._out.append(frame(frames.RST_STREAM, 0, self._stream, code))
            self._is_active, self._body = False, _NOTHING

    def to_send(self) -> bytes:
        """Return the bytes that may be sent now."""
        if not self._out and not self._body:
            return b""
        body, room = self._body, min(self._window, self._connection_window)
        while len(body) and room > 0:
            part = body[: min(room, self._max_frame)]
            body = body[len(part) :]
            room -= len(part)
            self._window -= len(part)
            self._connection_window -= len(part)
            flags = 0 if len(body) else frames.END_STREAM
            self._out.append(frame(frames.DATA, flags, self._stream, part))
        # An empty view would keep the whole request in memory.
        self._body = body if len(body) else _NOTHING
        out, self._out = self._out, []
        return b"".join(out)

    def receive(self, data: bytes) -> bytes:
        """Process received bytes and return those of the response in HTTP/1.1. If `problem` is set
        afterwards, no more bytes follow."""
        if self.problem is None:
            try:
                self._handle_all(self._rest + data)
            except Http2Problem as problem:
                self.problem = problem
        plain, self._plain = self._plain, []
        return b"".join(plain)

    def _handle_all(self, data: bytes) -> None:
        if not self.is_ready and data.startswith(b"HTTP/"[: len(data)]):
            if len(data) < len(b"HTTP/1.1 "):
                self._rest = data
                return
            raise Http2Problem(f"the server speaks HTTP/1.1 here; {REMEDY}", ErrorKind.PROTOCOL)
        at, size = 0, len(data)
        while size - at >= _HEADER_BYTES:
            word, flags, stream = frames.HEADER.unpack_from(data, at)
            length, kind = word >> 8, word & 255
            if not self.is_ready and (kind != frames.SETTINGS or flags & frames.ACK):
                text = f"the server does not speak HTTP/2 here; {REMEDY}"
                raise Http2Problem(text, ErrorKind.PROTOCOL)
            if length > frames.SMALLEST_MAX_FRAME:
                raise _broken(f"a frame of {length} bytes")
            begin, end = at + _HEADER_BYTES, at + _HEADER_BYTES + length
            if end > size:
                break
            at = end
            self._handle_frame(kind, flags, stream & _LAST_STREAM, data[begin:end])
        self._rest = data[at:]

    def _handle_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (
            kind != frames.CONTINUATION or stream != self._block_stream
        ):
            raise _broken("a header block without its end")
        if kind == frames.DATA:
            self._handle_data(flags, stream, payload)
        elif kind in (frames.HEADERS, frames.CONTINUATION):
            self._handle_block(kind, flags, stream, payload)
        elif kind == frames.SETTINGS:
            self._handle_settings(flags, stream, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._handle_window(stream, payload)
        elif kind == frames.PING:
            if len(payload) != 8 or stream:
                raise _broken("a PING frame")
            if not flags & frames.ACK:
                self._out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.RST_STREAM:
            (code,) = _numbers(">I", payload, "RST_STREAM")
            if self._is_current(stream):
                text = f"the server reset the stream: {frames.error_name(code)}"
                raise Http2Problem(text, ErrorKind.STREAM_RESET)
        elif kind == frames.GOAWAY:
            self._handle_goaway(payload)
        elif kind == frames.PUSH_PROMISE:
            raise _broken("a PUSH_PROMISE frame, which was forbidden")
        # RFC 9113 requires that frames of other kinds are ignored.

    def _is_current(self, stream: int) -> bool:
        """Return whether the frame belongs to the request in flight. Frames of earlier requests are
        ignored."""
        if stream == self._stream:
            return self._is_active
        if stream % 2 == 0 or stream > self._stream:
            raise _broken(f"a frame of stream {stream}, which is not open")
        return False

    # --- the response ----------------------------------------------------------------------------

    def _handle_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._to_acknowledge += len(payload)
        if self._to_acknowledge >= RENEW_WINDOW_AT:
            self._out.append(_window_update(self._to_acknowledge))
            self._to_acknowledge = 0
        if not self._is_current(stream):
            return
        if not self._has_head:
            raise _broken("DATA before the headers")
        body = _unpadded(payload) if flags & frames.PADDED else payload
        if self._length is not None:
            self._length -= len(body)
            if self._length < 0:
                raise _broken("a body longer than its content-length")
        if body:
            self._plain.append(b"%x\r\n%b\r\n" % (len(body), body))
        if flags & frames.END_STREAM:
            self._end()

    def _end(self) -> None:
        if self._length:
            raise _broken(f"a body {self._length} bytes shorter than its content-length")
        self._plain.append(b"0\r\n\r\n")
        self._is_active = False

    def _handle_block(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == frames.HEADERS:
            if flags & frames.PADDED:
                payload = _unpadded(payload)
            if flags & frames.PRIORITY:
                payload = payload[5:]
            self._block, self._block_flags, self._block_stream = b"", flags, stream
        elif self._block is None:
            raise _broken("a CONTINUATION frame of no header block")
        block = self._block + payload
        if len(block) > MAX_BLOCK_BYTES:
            text = f"headers of over {MAX_BLOCK_BYTES // 2**10} KiB: cut off"
            raise Http2Problem(text, ErrorKind.TOO_LARGE)
        self._block = block
        if not flags & frames.END_HEADERS:
            return
        self._block = None
        try:
            # Blocks of earlier streams too, since they change the table.
            fields = list(self._decode(block))
        except ValueError as error:
            raise _broken(f"a header block: {error}") from error
        if self._is_current(stream):
            self._handle_fields(fields, is_end=bool(self._block_flags & frames.END_STREAM))

    def _handle_fields(self, fields: list[tuple[bytes, bytes]], *, is_end: bool) -> None:
        if self._has_head:
            if not is_end:
                raise _broken("trailers before the end")
            self._end()
            return
        status, lines = b"", []
        for name, value in fields:
            if name == b":status":
                status = value
            elif name == b"content-length":
                if not value.isdigit() or len(value) > 15:
                    raise _broken(f"content-length {value[:40]!r}")
                self._length = int(value)
            elif name not in _DROPPED_HEADERS:
                line = name + b": " + value
                if b"\r" in line or b"\n" in line or b"\0" in line or b":" in name:
                    raise _broken(f"a header {name[:40]!r}")
                lines.append(line)
        if len(status) != 3 or not status.isdigit():
            raise _broken(f"a status {status[:40]!r}")
        if status < b"200":
            if is_end:
                raise _broken(f"status {status.decode()} at the end")
            self._length = None
            self._plain.append(_head(status, lines))
            return
        self._has_head = True
        if is_end:
            if self._length:
                raise _broken(f"no body, and a content-length of {self._length}")
            self._plain.append(_head(status, [*lines, b"Content-Length: 0"]))
            self._is_active = False
        else:
            self._plain.append(_head(status, [*lines, b"Transfer-Encoding: chunked"]))

    # --- the connection --------------------------------------------------------------------------

    def _handle_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & frames.ACK and payload):
            raise _broken("a SETTINGS frame")
        if flags & frames.ACK:
            return
        for name, value in struct.iter_unpack(">HI", payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise _broken(f"a window of {value} bytes")
                # It also changes the window of the stream in flight, which may become negative.
                self._window += value - self._initial_window
                self._initial_window = value
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.SMALLEST_MAX_FRAME <= value <= frames.LARGEST_MAX_FRAME:
                    raise _broken(f"a frame size of {value} bytes")
                self._max_frame = value
        self.is_ready = True
        self._out.append(frame(frames.SETTINGS, frames.ACK, 0))

    def _handle_window(self, stream: int, payload: bytes) -> None:
        (increment,) = _numbers(">I", payload, "WINDOW_UPDATE")
        increment &= frames.MAX_WINDOW
        if not increment:
            raise _broken("a WINDOW_UPDATE of nothing")
        if stream == 0:
            self._connection_window += increment
        elif self._is_current(stream):
            self._window += increment
        if max(self._window, self._connection_window) > frames.MAX_WINDOW:
            raise _broken("a window of over 2 GiB")

    def _handle_goaway(self, payload: bytes) -> None:
        last, code = _numbers(">II", payload[:8], "GOAWAY")
        self._is_going_away = True
        if self._is_active and self._stream > last & _LAST_STREAM:
            name = frames.error_name(code)
            text = f"the server closes the connection ({name}) without processing the request"
            raise Http2Problem(text, ErrorKind.DISCONNECTED, is_unprocessed=code == 0)


def _broken(problem: str) -> Http2Problem:
    return Http2Problem(f"broken HTTP/2: {problem}", ErrorKind.PROTOCOL)


def _window_update(increment: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", increment))


def _numbers(form: str, payload: bytes, name: str) -> tuple[int, ...]:
    if len(payload) != struct.calcsize(form):
        raise _broken(f"a {name} frame")
    return struct.unpack(form, payload)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _broken("padding")
    return payload[1 : len(payload) - payload[0]]


def _head(status: bytes, lines: list[bytes]) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status + b" ", *lines, b"\r\n"])
