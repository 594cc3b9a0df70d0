"""The HTTP/2 connection by itself: split frames, invalid frames, windows."""

import random
import struct

import pytest
from hpack import Decoder, Encoder

from aiperf_svc.adapters.inference.http2_stream import new_connection
from aiperf_svc.core.http2 import frames
from aiperf_svc.core.http2.connection import RENEW_WINDOW_AT, Http2Connection
from aiperf_svc.core.http2.frames import frame
from aiperf_svc.domain.outcomes import ErrorKind

REQUEST = b"POST /v1/x HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer key\r\n\r\n"
SETTINGS = frames.settings({})
OK = frame(frames.HEADERS, frames.END_HEADERS, 1, Encoder().encode([(":status", "200")]))
HEAD = b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n"


def connection(request: bytes = REQUEST + b"body") -> Http2Connection:
    """Return a ready connection with a request in flight."""
    made = new_connection("http")
    assert made.receive(SETTINGS) == b""
    assert made.is_ready
    made.send(request)
    return made


def sent_by(made: Http2Connection) -> list[tuple[int, int, int, bytes]]:
    """Return kind, flags, stream and payload of each frame after the preface."""
    data, found = made.to_send().removeprefix(frames.PREFACE), []
    while data:
        word, flags, stream = frames.HEADER.unpack_from(data)
        end = frames.HEADER.size + (word >> 8)
        found.append((word & 255, flags, stream, data[frames.HEADER.size : end]))
        data = data[end:]
    return found


def data_frame(body: bytes, *, end: bool = False, stream: int = 1) -> bytes:
    return frame(frames.DATA, frames.END_STREAM if end else 0, stream, body)


def block(*fields: tuple[str, str], flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, 1, Encoder().encode(list(fields)))


def test_response_is_the_same_for_any_split() -> None:
    received = OK + data_frame(b"one") + frame(99, 0, 0, b"?") + data_frame(b"two", end=True)
    whole = HEAD + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert connection().receive(received) == whole
    for at in range(len(received)):
        made = connection()
        sent_by(made)
        assert made.receive(received[:at]) + made.receive(received[at:]) == whole
        assert made.may_reuse
    one_by_one = connection()
    assert b"".join(one_by_one.receive(bytes((byte,))) for byte in received) == whole


def test_request_headers_are_never_indexed() -> None:
    made = connection()
    *_, headers, data = sent_by(made)
    assert headers[:3] == (frames.HEADERS, frames.END_HEADERS, 1)
    fields = list(Decoder().decode(headers[3], raw=True))
    assert fields == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":authority", b"h:1"),
        (b":path", b"/v1/x"),
        (b"authorization", b"Bearer key"),
    ]
    assert not any(field.indexable for field in fields)
    assert data == (frames.DATA, frames.END_STREAM, 1, b"body")


def test_long_headers_use_continuation_frames() -> None:
    value = b"v" * 40_000
    made = connection(b"GET / HTTP/1.1\r\nX-Long: " + value + b"\r\n\r\n")
    parts = [each for each in sent_by(made) if each[0] in (frames.HEADERS, frames.CONTINUATION)]
    assert [(kind, flags) for kind, flags, _, _ in parts] == [
        (frames.HEADERS, frames.END_STREAM),
        (frames.CONTINUATION, 0),
        (frames.CONTINUATION, frames.END_HEADERS),
    ]
    block = b"".join(payload for *_, payload in parts)
    assert (b"x-long", value) in list(Decoder().decode(block, raw=True))


def test_a_body_waits_for_the_smaller_window() -> None:
    body = b"x" * 100_000
    made = connection(REQUEST + body)

    def sent() -> int:
        return sum(len(payload) for kind, *_, payload in sent_by(made) if kind == frames.DATA)

    def window(stream: int, increment: int) -> bytes:
        return frame(frames.WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))

    assert (sent(), made.is_sending) == (65_535, True)
    made.receive(window(1, 10_000))
    assert sent() == 0
    made.receive(window(0, 1_000))
    assert sent() == 1_000
    # A smaller initial window makes the stream's window negative: 9,000 are left of it.
    made.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 50_000}) + window(0, 100_000))
    assert sent() == 0
    made.receive(window(1, 65_535 - 50_000))
    assert sent() == 9_000
    made.receive(window(1, 100_000))
    assert (sent(), made.is_sending) == (100_000 - 65_535 - 10_000, False)


def test_response_before_the_request_ends_the_connection() -> None:
    made = connection(REQUEST + b"x" * 100_000)
    made.to_send()
    assert made.receive(block((":status", "413"), flags=5)).startswith(b"HTTP/1.1 413")
    assert not made.may_reuse


def test_the_windows_for_responses_are_filled_up() -> None:
    made = connection()
    opening = sent_by(made)
    assert (frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 65_536)) in opening
    part = data_frame(bytes(16_384))
    made.receive(OK + part * (RENEW_WINDOW_AT // 16_384))
    update = (frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", RENEW_WINDOW_AT))
    assert sent_by(made) == [update]


def test_settings_and_pings_are_acknowledged_once() -> None:
    made = connection()
    sent_by(made)
    made.receive(frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, 1, 0, b"12345678"))
    made.receive(SETTINGS + frame(frames.SETTINGS, frames.ACK, 0))
    assert sent_by(made) == [
        (frames.PING, frames.ACK, 0, b"12345678"),
        (frames.SETTINGS, frames.ACK, 0, b""),
    ]


def test_left_stream_is_reset_and_connection_reused() -> None:
    made = connection()
    sent_by(made)
    made.receive(block((":status", "200")) + data_frame(b"a"))
    made.leave_stream()
    made.leave_stream()
    reset = (frames.RST_STREAM, 0, 1, b"\0\0\0\x08")
    assert [each for each in sent_by(made) if each[0] == frames.RST_STREAM] == [reset]
    assert made.may_reuse
    assert made.receive(data_frame(b"late", end=True)) == b""
    made.send(REQUEST + b"body")
    assert made.receive(data_frame(b"later") + b"") == b""
    assert made.problem is None


def test_frames_of_earlier_streams_are_ignored() -> None:
    made = connection()
    made.receive(OK + data_frame(b"", end=True))
    made.send(REQUEST)
    late = frame(frames.RST_STREAM, 0, 1, bytes(4)) + data_frame(b"late")
    assert made.receive(late + frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1")) == b""
    assert made.problem is None


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (frames.HEADER.pack(16_385 << 8, 0, 1), "a frame of 16385 bytes"),
        (data_frame(b"x"), "DATA before the headers"),
        (OK + data_frame(b"x", stream=3), "a frame of stream 3, which is not open"),
        (OK + data_frame(b"x", stream=0), "a frame of stream 0, which is not open"),
        (OK + OK, "trailers before the end"),
        (OK + frame(frames.DATA, frames.PADDED, 1, b"\x05abc"), "padding"),
        (frame(frames.CONTINUATION, 4, 1, b"\x88"), "a CONTINUATION frame of no header block"),
        (frame(frames.HEADERS, 0, 1, b"\x88") + data_frame(b"x"), "a header block without its end"),
        (frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff"), "a header block: "),
        (block(("x", "y")), "a status b''"),
        (block((":status", "20x")), "a status b'20x'"),
        (block((":status", "200"), ("x", "a\r\nb")), "a header b'x'"),
        (block((":status", "200"), ("content-length", "-1")), "content-length b'-1'"),
        (block((":status", "200"), ("content-length", "3"), flags=5), "a content-length of 3"),
        (
            block((":status", "200"), ("content-length", "3")) + data_frame(b"four"),
            "a body longer than its content-length",
        ),
        (
            block((":status", "200"), ("content-length", "3")) + data_frame(b"x", end=True),
            "a body 2 bytes shorter than its content-length",
        ),
        (frame(frames.PUSH_PROMISE, 4, 1, bytes(5)), "a PUSH_PROMISE frame"),
        (frame(frames.SETTINGS, 0, 0, b"123"), "a SETTINGS frame"),
        (frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31}), "a window of 2147483648 bytes"),
        (frames.settings({frames.MAX_FRAME_SIZE: 1}), "a frame size of 1 bytes"),
        (frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), "a WINDOW_UPDATE of nothing"),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), "a window of over 2 GiB"),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"1"), "a WINDOW_UPDATE frame"),
        (frame(frames.PING, 0, 0, b"1"), "a PING frame"),
        (frame(frames.RST_STREAM, 0, 1, b"1"), "a RST_STREAM frame"),
        (frame(frames.GOAWAY, 0, 0, b"1"), "a GOAWAY frame"),
    ],
)
def test_broken_frames_end_the_connection_and_are_named(received: bytes, text: str) -> None:
    made = connection()
    made.receive(received)
    assert made.problem is not None
    assert text in str(made.problem)
    assert made.problem.kind == ErrorKind.PROTOCOL
    assert (made.receive(OK), made.may_reuse) == (b"", False)


def test_headers_without_an_end_are_cut_off() -> None:
    made = connection()
    made.receive(frame(frames.HEADERS, 0, 1, bytes(16_000)))
    more = frame(frames.CONTINUATION, 0, 1, bytes(16_000))
    made.receive(more * 20)
    assert made.problem is not None
    assert made.problem.kind == ErrorKind.TOO_LARGE


def test_data_before_a_problem_is_kept() -> None:
    made = connection()
    reset = frame(frames.RST_STREAM, 0, 1, struct.pack(">I", 11))
    assert made.receive(OK + data_frame(b"one") + reset) == HEAD + b"3\r\none\r\n"
    assert str(made.problem) == "the server reset the stream: ENHANCE_YOUR_CALM"
    assert frames.error_name(99) == "error 0x63"


@pytest.mark.parametrize(("code", "is_unprocessed"), [(0, True), (11, False)])
def test_only_a_graceful_goaway_allows_a_retry(code: int, is_unprocessed: bool) -> None:
    made = connection()
    made.receive(frame(frames.GOAWAY, 0, 0, struct.pack(">II", 0, code)))
    assert made.problem is not None
    assert made.problem.is_unprocessed == is_unprocessed


def test_damaged_bytes_never_raise() -> None:
    fields = block((":status", "200"), ("content-type", "text/event-stream"), ("x", "y" * 200))
    whole = fields + data_frame(b"x" * 100) + SETTINGS + data_frame(b"", end=True)
    for seed in range(2_000):
        lot, received = random.Random(seed), bytearray(whole)
        for _ in range(lot.randint(1, 5)):
            received[lot.randrange(len(received))] = lot.randrange(256)
        made = connection()
        made.receive(bytes(received[: lot.randint(1, len(received))]))
        made.to_send()
