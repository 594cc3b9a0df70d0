"""Parses HTTP/1.1 response heads and chunked bodies (RFC 9112), to the extent that a client of JSON
APIs needs.

The worker uses heads and chunk sizes to find the end of a response; a record processor removes the
framing. Neither copies a body: its pieces are offsets into the caller's bytes.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiperf_svc.protocol.records import Framing

MAX_CHUNK_LINE: Final = 1_024
"""Maximum bytes of a chunk's size line or of a trailer; no sensible server sends longer ones."""
_MAX_LENGTH_DIGITS: Final = 15
_SHOWN: Final = 40
"""Maximum characters of a header's value in a message."""
_MAX_SIZE_DIGITS: Final = 8
_HEX_DIGITS: Final = b"0123456789abcdefABCDEF"
_KNOWN_LINES: Final = 4_096
_PRINTABLE: Final = re.compile(rb"[\t -~]+")

Piece = tuple[int, int]
"""Begin and exclusive end of body bytes within the input bytes."""


class ProtocolViolation(ValueError):
    """The bytes are not HTTP/1.1, or the framing of the body is broken."""


class Head(NamedTuple):
    """Content of a status line and headers."""

    status: int
    """HTTP status; below 200 for an interim response, which another head follows."""
    framing: int
    """Value of `Framing`."""
    length: int
    """Length of the body in bytes; 0 unless framing is LENGTH."""
    keep_alive: bool
    content_type: str
    """Media type without parameters, in lower case."""
    content_coding: str = ""
    """Compression of the body, in lower case; empty if it is not compressed."""


def parse_head(raw: bytes, *, method: str = "POST") -> Head:
    """Parse the bytes up to and including the empty line. Raises ProtocolViolation.

    `method` is the request's: the response to HEAD has no body, whatever its headers contain.
    """
    if not raw.endswith(b"\r\n\r\n"):
        raise ProtocolViolation(f"a head without its empty line: {raw[-80:]!r}")
    lines = raw[:-4].split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit():
        raise ProtocolViolation(f"not an HTTP/1.1 status line: {lines[0][:80]!r}")
    if rest[3:4] not in (b"", b" ") or code < b"100":
        raise ProtocolViolation(f"not an HTTP/1.1 status line: {lines[0][:80]!r}")
    status = int(code)
    headers: dict[bytes, list[bytes]] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.strip() != name or b"\n" in line or b"\0" in line:
            raise ProtocolViolation(f"not a header: {line[:80]!r}")
        headers.setdefault(name.lower(), []).append(value.strip(b" \t"))
    connection = b",".join(headers.get(b"connection", [])).lower()
    tokens = {token.strip() for token in connection.split(b",")}
    keep_alive = b"close" not in tokens and (version == b"HTTP/1.1" or b"keep-alive" in tokens)
    content_type = b",".join(headers.get(b"content-type", [])).split(b";")[0].strip().lower()
    coding = b",".join(headers.get(b"content-encoding", [])).strip().lower()
    framing, length = _framing(status, headers, method)
    if framing == Framing.UNTIL_CLOSE:
        keep_alive = False
    return Head(
        status,
        framing,
        length,
        keep_alive,
        content_type.decode("latin-1"),
        "" if coding == b"identity" else coding[:_SHOWN].decode("latin-1"),
    )


def issued_header(raw: bytes, name: str) -> bytes:
    """Return a response header as a header line for requests; empty without a value allowed in
    requests."""
    wanted = name.lower().encode()
    for line in raw.split(b"\r\n"):
        found, _, value = line.partition(b":")
        if found.strip().lower() == wanted and _PRINTABLE.fullmatch(value := value.strip()):
            return b"%b: %b\r\n" % (name.encode(), value)
    return b""


def _framing(status: int, headers: dict[bytes, list[bytes]], method: str) -> tuple[int, int]:
    """Return framing and length by RFC 9112, section 6.3, in its order of precedence."""
    if method == "HEAD" or status < 200 or status in (204, 304):
        return Framing.LENGTH, 0
    codings = [
        coding.strip()
        for value in headers.get(b"transfer-encoding", [])
        for coding in value.lower().split(b",")
        if coding.strip()
    ]
    if codings:
        # Any other coding, e.g. gzip, was not requested and would not be removed.
        if codings != [b"chunked"]:
            raise ProtocolViolation(f"a transfer coding that was not requested: {codings!r}")
        return Framing.CHUNKED, 0
    lengths = {part.strip() for v in headers.get(b"content-length", []) for part in v.split(b",")}
    if not lengths:
        return Framing.UNTIL_CLOSE, 0
    value = lengths.pop()
    if lengths or not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
        raise ProtocolViolation(f"bad Content-Length: {value[:40]!r}")
    return Framing.LENGTH, int(value)


def chunk_size(line: bytes) -> int:
    """Return the size in a chunk's first line, without its extensions; -1 if it is invalid. Leading
    zeros are legal, and some servers pad with them to a fixed width."""
    digits = line.split(b";", 1)[0].strip(b" \t\r\n")
    significant = digits.lstrip(b"0")
    if not digits or len(significant) > _MAX_SIZE_DIGITS or significant.strip(_HEX_DIGITS):
        return -1
    return int(significant or b"0", 16)


_known_sizes: dict[bytes, int] = {}
"""Sizes by size line, since lines repeat."""


def _known_chunk_size(line: bytes) -> int:
    size = chunk_size(line)
    if size < 0:
        raise ProtocolViolation(f"no chunk size: {line[:40]!r}")
    if len(_known_sizes) < _KNOWN_LINES:
        _known_sizes[line] = size
    return size


# What a ChunkedBody expects next.
_SIZE, _DATA, _DATA_END, _TRAILER, _NOTHING = range(5)


class ChunkedBody:
    """Removes the chunked framing from a body that arrives in arbitrary parts."""

    __slots__ = ("_left", "_line", "_state")

    def __init__(self) -> None:
        self._state = _SIZE
        self._left = 0
        self._line = b""

    @property
    def is_between_chunks(self) -> bool:
        """True if the next byte begins a chunk's size line."""
        return self._state == _SIZE and not self._line

    @property
    def is_complete(self) -> bool:
        """True if the last chunk and its trailers have been read."""
        return self._state == _NOTHING

    def feed(self, data: bytes, at: int, stop: int) -> Sequence[Piece]:
        """Return the pieces of body within `data[at:stop]`, in order, none of them empty.

        A piece never spans chunks. Raises ProtocolViolation for broken framing or bytes after the
        end.
        """
        pieces: list[Piece] = []
        if self.is_between_chunks:
            at = self._feed_whole(data, at, stop, pieces)
        while at < stop:
            if self._state == _DATA:
                end = min(at + self._left, stop)
                pieces.append((at, end))
                self._left -= end - at
                at = end
                if not self._left:
                    self._state, self._left = _DATA_END, 2
            elif self._state == _DATA_END:
                end = min(at + self._left, stop)
                if not b"\r\n".startswith(data[at:end], 2 - self._left):
                    raise ProtocolViolation(f"no end of chunk: {data[at:end]!r}")
                self._left -= end - at
                at = end
                if not self._left:
                    self._state = _SIZE
            elif self._state == _NOTHING:
                raise ProtocolViolation(f"bytes after the last chunk: {data[at : at + 40]!r}")
            else:
                at = self._handle_line(data, at, stop)
        return pieces

    def _feed_whole(self, data: bytes, at: int, stop: int, pieces: list[Piece]) -> int:
        """Read the complete leading chunks in as few steps as possible, since most chunks are
        complete. Returns the offset of the first incomplete chunk."""
        find, known, add = data.find, _known_sizes.get, pieces.append
        while True:
            begin = find(b"\n", at, stop) + 1
            size = known(data[at:begin]) if begin else 0
            if not size:
                return at
            end = begin + size
            after = end + 2
            if after > stop or data[end:after] != b"\r\n":
                return at
            add((begin, end))
            at = after

    def _handle_line(self, data: bytes, at: int, stop: int) -> int:
        """Read a size line or a trailer, or a part of one. Returns the offset reached."""
        end = data.find(b"\n", at, stop) + 1 or stop
        self._line += data[at:end]
        if len(self._line) > MAX_CHUNK_LINE:
            raise ProtocolViolation(f"a chunk's first line of over {MAX_CHUNK_LINE} bytes")
        if not self._line.endswith(b"\n"):
            return end
        line, self._line = self._line, b""
        if self._state == _TRAILER:
            self._state = _NOTHING if line in (b"\r\n", b"\n") else _TRAILER
        else:
            self._left = _known_chunk_size(line)
            self._state = _DATA if self._left else _TRAILER
        return end
