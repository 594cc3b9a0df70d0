"""Response heads and chunked bodies."""

import pytest

from aiperf_svc.core.responses.http1 import (
    ChunkedBody,
    Head,
    ProtocolViolation,
    chunk_size,
    issued_header,
    parse_head,
)
from aiperf_svc.protocol.records import Framing

LENGTH, CHUNKED, UNTIL_CLOSE = Framing.LENGTH, Framing.CHUNKED, Framing.UNTIL_CLOSE


def head(*lines: bytes, status: bytes = b"HTTP/1.1 200 OK", method: str = "POST") -> Head:
    return parse_head(b"\r\n".join((status, *lines, b"", b"")), method=method)


@pytest.mark.parametrize(
    ("lines", "framing", "length"),
    [
        ((b"Content-Length: 12",), LENGTH, 12),
        ((b"CONTENT-length:12",), LENGTH, 12),
        ((b"Content-Length: 7, 7",), LENGTH, 7),
        ((b"Content-Length: 7", b"Content-Length: 7"), LENGTH, 7),
        ((b"Transfer-Encoding: chunked",), CHUNKED, 0),
        ((b"Transfer-Encoding: Chunked", b"Content-Length: 12"), CHUNKED, 0),
        ((), UNTIL_CLOSE, 0),
    ],
)
def test_framing_follows_the_precedence_of_the_standard(
    lines: tuple[bytes, ...], framing: int, length: int
) -> None:
    found = head(*lines)
    assert (found.framing, found.length) == (framing, length)


@pytest.mark.parametrize("status", [b"100 Continue", b"103 Early Hints", b"204 No", b"304 Not"])
def test_bodyless_statuses_ignore_framing_headers(status: bytes) -> None:
    found = head(b"Transfer-Encoding: chunked", status=b"HTTP/1.1 " + status)
    assert (found.framing, found.length) == (LENGTH, 0)


def test_the_response_to_head_has_no_body() -> None:
    found = head(b"Content-Length: 9", method="HEAD")
    assert (found.framing, found.length) == (LENGTH, 0)


@pytest.mark.parametrize(
    ("status", "lines", "keeps"),
    [
        (b"HTTP/1.1 200 OK", (b"Content-Length: 0",), True),
        (b"HTTP/1.1 200 OK", (b"Content-Length: 0", b"Connection: close"), False),
        (b"HTTP/1.1 200 OK", (b"Content-Length: 0", b"connection: foo, Close"), False),
        (b"HTTP/1.0 200 OK", (b"Content-Length: 0",), False),
        (b"HTTP/1.0 200 OK", (b"Content-Length: 0", b"Connection: keep-alive"), True),
        (b"HTTP/1.1 200 OK", (b"Connection: keep-alive",), False),
    ],
)
def test_connection_is_kept_only_with_a_known_end(
    status: bytes, lines: tuple[bytes, ...], keeps: bool
) -> None:
    assert head(*lines, status=status).keep_alive is keeps


def test_media_type_is_lower_case_and_without_parameters() -> None:
    assert head(b"Content-Type: Text/Event-Stream; charset=utf-8").content_type == (
        "text/event-stream"
    )
    assert head().content_type == ""


@pytest.mark.parametrize("status", [b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.1 599 x y"])
def test_a_reason_is_optional(status: bytes) -> None:
    assert head(status=status).status in (200, 599)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n",
    ],
)
def test_a_bad_head_is_a_protocol_violation(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse_head(raw)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (b"0\r\n", 0),
        (b"1f\r\n", 31),
        (b"1F;name=value;x\r\n", 31),
        (b"1f \r\n", 31),
        (b"1f\n", 31),
        (b"\r\n", -1),
        (b"1_0\r\n", -1),
        (b"0x1f\r\n", -1),
        (b"+1\r\n", -1),
        (b"123456789\r\n", -1),
    ],
)
def test_chunk_size_is_strictly_hexadecimal(line: bytes, size: int) -> None:
    assert chunk_size(line) == size


BODY = b"data: one\n\n" + b"x" * 300 + b"\r\n0\r\n"
FRAMED = (
    b"b;a=b\r\ndata: one\n\n\r\n12C\r\n" + b"x" * 300 + b"\r\n5\r\n\r\n0\r\n\r\n"
    b"0\r\nTrailer: yes\r\nOther: 1\r\n\r\n"
)


def decode(parts: list[bytes]) -> tuple[bytes, ChunkedBody]:
    body = ChunkedBody()
    out = b""
    for part in parts:
        # Surrounded by other bytes, as in a batch, so that a read beyond its range is noticed.
        padded = b"9\r\n" + part + b"\r\n0\r\n"
        for begin, end in body.feed(padded, 3, 3 + len(part)):
            assert begin < end
            out += padded[begin:end]
    return out, body


def test_chunked_body_is_the_same_under_every_cut() -> None:
    for cut in range(len(FRAMED) + 1):
        out, body = decode([FRAMED[:cut], FRAMED[cut:]])
        assert (out, body.is_complete) == (BODY, True), cut


def test_chunked_body_is_the_same_byte_by_byte() -> None:
    out, body = decode([FRAMED[i : i + 1] for i in range(len(FRAMED))])
    assert out == BODY
    assert body.is_complete


def test_body_without_its_last_chunk_is_not_complete() -> None:
    assert not decode([FRAMED[:-1]])[1].is_complete


@pytest.mark.parametrize(
    "raw",
    [
        b"z\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\rx",
        b"0\r\n\r\nmore",
        b"1" * 2_000,
        b"0\r\n" + b"t" * 2_000,
    ],
)
def test_broken_chunks_are_a_protocol_violation(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode([raw])
    with pytest.raises(ProtocolViolation):
        decode([raw[i : i + 1] for i in range(len(raw))])


def test_issued_header_becomes_a_line_of_a_request() -> None:
    raw = b"HTTP/1.1 200 OK\r\nX-Session-TOKEN:  a b=\r\nOther: c\r\n\r\n"
    assert issued_header(raw, "x-session-token") == b"x-session-token: a b=\r\n"
    assert issued_header(raw, "x-session") == b""


@pytest.mark.parametrize("value", [b"", b"a\nb", b"a\x00", "ä".encode()])
def test_invalid_issued_header_is_left_out(value: bytes) -> None:
    assert issued_header(b"HTTP/1.1 200 OK\r\nx: %b\r\n\r\n" % value, "x") == b""
