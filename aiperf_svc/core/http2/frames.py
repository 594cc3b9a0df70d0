"""Builds HTTP/2 frames and the header blocks of requests (RFC 9113, section 4; RFC 7541).

A request's header block uses no table and no Huffman code: every field is a literal that is never
indexed. This costs a few hundred bytes per request, and keeps secrets out of the tables of
intermediaries.
"""

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
"""Flag of SETTINGS and PING."""
END_STREAM: Final = 0x1
"""Flag of DATA and HEADERS."""
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 2
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
SMALLEST_MAX_FRAME: Final = 16_384
"""Also the default, and the largest frame that this client accepts."""
LARGEST_MAX_FRAME: Final = 2**24 - 1

CANCEL: Final = 8
"""Error code for cancelling a stream."""

HEADER: Final = struct.Struct(">IBI")
"""Header of each frame: length and type, flags, stream."""

_ERRORS: Final = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)
_NEVER_INDEXED: Final = b"\x10"
"""A literal field whose name is a literal too (RFC 7541, section 6.2.3)."""
_CONNECTION_HEADERS: Final = frozenset(
    (b"host", b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
"""Headers that HTTP/2 forbids (RFC 9113, section 8.2.2), and Host, which `:authority` replaces."""


def error_name(code: int) -> str:
    """Return the name of an error code (RFC 9113, section 7)."""
    return _ERRORS[code] if code < len(_ERRORS) else f"error {code:#x}"


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    return HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *each) for each in values.items()))


def header_frames(stream: int, block: bytes, max_frame: int, *, is_all: bool) -> bytes:
    """Return a header block as a HEADERS frame and, if it is long, CONTINUATION frames. With
    `is_all`, the request has no body."""
    parts = [block[at : at + max_frame] for at in range(0, len(block), max_frame)]
    frames = []
    for number, part in enumerate(parts):
        flags = END_HEADERS if number == len(parts) - 1 else 0
        if number == 0 and is_all:
            flags |= END_STREAM
        frames.append(frame(CONTINUATION if number else HEADERS, flags, stream, part))
    return b"".join(frames)


def request_block(head: bytes, scheme: bytes) -> bytes:
    """Return the header block of a request, from its HTTP/1.1 line and headers without the empty
    line."""
    line, *lines = head.split(b"\r\n")
    method, path, _ = line.split(b" ", 2)
    authority, fields = b"", []
    for each in lines:
        name, _, value = each.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"host":
            authority = value
        if name not in _CONNECTION_HEADERS and (name != b"te" or value == b"trailers"):
            fields.append(_NEVER_INDEXED + _text(name) + _text(value))
    pseudo = ((b":method", method), (b":scheme", scheme), (b":authority", authority))
    first = [_NEVER_INDEXED + _text(name) + _text(value) for name, value in pseudo]
    return b"".join([*first, _NEVER_INDEXED + _text(b":path") + _text(path), *fields])


def _text(value: bytes) -> bytes:
    """Return a string literal, without Huffman code (RFC 7541, sections 5.1 and 5.2)."""
    left = len(value)
    if left < 127:
        return bytes((left,)) + value
    left -= 127
    length = [127]
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return bytes(length) + value
