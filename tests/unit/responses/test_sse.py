"""Server-sent events under every split."""

import pytest

from aiperf_svc.core.responses.sse import EventStream

# Bytes of a stream and its events as (data, is_error).
STREAMS: dict[str, tuple[bytes, list[tuple[bytes, bool]]]] = {
    "plain": (b"data: one\n\ndata: two\n\n", [(b"one", False), (b"two", False)]),
    "no space": (b"data:one\n\ndata:  two\n\n", [(b"one", False), (b" two", False)]),
    "crlf": (b"data: one\r\n\r\ndata: two\r\n\r\n", [(b"one", False), (b"two", False)]),
    "cr": (b"data: one\r\rdata: two\r\r", [(b"one", False), (b"two", False)]),
    "mixed ends": (
        b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n",
        [(b, False) for b in (b"a", b"b", b"c")],
    ),
    "several lines": (b"data: {\ndata:  1}\n\n", [(b"{\n 1}", False)]),
    "comments": (b": keep-alive\n\ndata: one\n: more\n\n:\n\n", [(b"one", False)]),
    "other fields": (b"id: 5\nretry: 10\ndata: one\nunknown: x\n\n", [(b"one", False)]),
    "no colon": (b"data\n\ndata: x\ndata\n\nfoo\n\n", [(b"", False), (b"x\n", False)]),
    "empty data": (b"data:\n\ndata: \n\n", [(b"", False), (b"", False)]),
    "error": (b'event: error\ndata: {"a":1}\n\ndata: b\n\n', [(b'{"a":1}', True), (b"b", False)]),
    "error in a comment": (
        b": one\nevent: error\n: two\n\n: three\n\ndata: b\n\n",
        [(b"two", True), (b"b", False)],
    ),
    "error in a field": (b'error: {"a":1}\n\ndata: b\n\n', [(b'{"a":1}', True), (b"b", False)]),
    "event without data": (b"event: error\n\ndata: b\n\n", [(b"b", False)]),
    "ping": (b"event: ping\ndata: a\n\nevent:heartbeat\ndata: b\n\ndata: c\n\n", [(b"c", False)]),
    "other type": (b"event: pings\ndata: a\n\n", [(b"a", False)]),
    "type changed": (b"event: error\nevent: message\ndata: b\n\n", [(b"b", False)]),
    "byte order mark": (b"\xef\xbb\xbfdata: one\n\n", [(b"one", False)]),
    "late byte order mark": (b"data: a\n\n\xef\xbb\xbfdata: one\n\n", [(b"a", False)]),
    "utf-8": ("data: grüße 🎉\n\n".encode(), [("grüße 🎉".encode(), False)]),
    "unfinished": (b"data: one\n\ndata: two\n", [(b"one", False)]),
    "empty lines": (b"\n\n\r\n\rdata: one\n\n\n\n", [(b"one", False)]),
    "a value with colons": (b"data: a: b:c\n\n", [(b"a: b:c", False)]),
}


def events_of(parts: list[bytes]) -> list[tuple[bytes, int, bool]]:
    """Return events with their end offsets in the whole stream, fed from between other bytes."""
    stream, found, before = EventStream(), [], 0
    for part in parts:
        source = b"\n\n" + part + b"\n\ndata: not mine\n\n"
        for data, end, is_error in stream.feed(source, [(2, 2 + len(part))]):
            found.append((data, before + end - 2, is_error))
        before += len(part)
    return found


@pytest.mark.parametrize("name", STREAMS)
def test_events_follow_the_standard(name: str) -> None:
    raw, expected = STREAMS[name]
    assert [(data, is_error) for data, _, is_error in events_of([raw])] == expected


@pytest.mark.parametrize("name", STREAMS)
def test_events_are_the_same_under_every_split(name: str) -> None:
    raw, _ = STREAMS[name]
    whole = events_of([raw])
    for cut in range(len(raw) + 1):
        assert events_of([raw[:cut], raw[cut:]]) == whole, cut
    assert events_of([raw[i : i + 1] for i in range(len(raw))]) == whole


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_event_ends_with_its_empty_line(newline: bytes) -> None:
    raw = (b"data: one" + newline * 2) * 2
    half = len(raw) // 2
    # After a CR, the parser does not wait for an LF.
    late = len(newline) - 1
    assert [end for _, end, _ in events_of([raw])] == [half - late, 2 * half - late]


def test_several_pieces_of_one_source_are_one_stream() -> None:
    source = b"5\r\ndata:\r\n6\r\n one\n\n\r\n"
    pieces = [(3, 8), (13, 19)]
    assert EventStream().feed(source, pieces) == [(b"one", 19, False)]


def test_incomplete_event_is_the_rest() -> None:
    stream = EventStream()
    stream.feed(b"data: [DONE]\n", [(0, 13)])
    assert stream.rest == b"[DONE]"
    stream = EventStream()
    stream.feed(b"data: [DONE]", [(0, 12)])
    assert stream.rest == b"[DONE]"
    assert EventStream().rest == b""
