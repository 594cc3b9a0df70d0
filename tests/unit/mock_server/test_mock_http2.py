"""The mock server's HTTP/2 with a client based on the h2 library."""

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded
from h2.settings import SettingCodes

from aiperf_svc.mock_server.http2 import PREFACE, Http2Error, Http2Session, frame

STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\ndata:1\r\n" + b"a\r\ndata:2----\r\n" + b"0\r\n\r\n"
)
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
EMPTY = b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Pair:
    """A client and its session."""

    def __init__(self, **settings: int) -> None:
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.session = Http2Session()
        self.client.initiate_connection()
        self.client.update_settings({SettingCodes[key]: value for key, value in settings.items()})
        self.requests = b""
        self.events: list[Event] = []
        self.to_server(self.client.data_to_send().removeprefix(PREFACE))

    def to_server(self, data: bytes | None = None) -> None:
        self.requests += self.session.receive(self.client.data_to_send() if data is None else data)
        self.to_client()

    def to_client(self) -> None:
        self.events += self.client.receive_data(self.session.to_send())

    def ask(self, body: bytes = b"", **headers: str) -> int:
        stream = self.client.get_next_available_stream_id()
        fields = [(":method", "POST"), (":path", "/v1/x"), (":scheme", "http")]
        fields += [(":authority", "h:1"), *((k.replace("_", "-"), v) for k, v in headers.items())]
        self.client.send_headers(stream, fields, end_stream=not body)
        if body:
            self.client.send_data(stream, body, end_stream=True)
        self.to_server()
        return stream

    def body(self, stream: int) -> bytes:
        found = [e for e in self.events if isinstance(e, DataReceived) and e.stream_id == stream]
        return b"".join(event.data or b"" for event in found)

    def has_ended(self, stream: int) -> bool:
        return any(isinstance(e, StreamEnded) and e.stream_id == stream for e in self.events)


def test_request_is_the_same_in_http_1_1() -> None:
    pair = Pair()
    pair.ask(b'{"a":1}', x_request_id="7", content_length="7")
    assert pair.requests == (
        b'POST /v1/x HTTP/1.1\r\nhost: h:1\r\nx-request-id: 7\r\ncontent-length: 7\r\n\r\n{"a":1}'
    )


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_responses_are_passed_on_wherever_their_writes_end(size: int) -> None:
    pair = Pair()
    streams = [pair.ask() for _ in range(3)]
    written = STREAM + WHOLE + EMPTY
    for at in range(0, len(written), size):
        pair.session.respond(written[at : at + size])
        pair.to_client()
    assert [pair.body(stream) for stream in streams] == [b"data:1data:2----", b"hello", b""]
    assert all(map(pair.has_ended, streams))
    heads = [dict(e.headers or ()) for e in pair.events if isinstance(e, ResponseReceived)]
    assert [head[":status"] for head in heads] == ["200", "200", "503"]  # type: ignore[index]
    assert heads[0]["content-type"] == "text/event-stream"  # type: ignore[index]
    assert not {"connection", "transfer-encoding"} & {name for head in heads for name in head}


def test_each_chunk_is_sent_at_once() -> None:
    pair = Pair()
    stream = pair.ask()
    head, _, rest = STREAM.partition(b"\r\n\r\n")
    pair.session.respond(head + b"\r\n\r\n" + rest[:11])
    pair.to_client()
    assert pair.body(stream) == b"data:1"
    assert not pair.has_ended(stream)


def test_a_body_waits_for_the_clients_window() -> None:
    pair = Pair(INITIAL_WINDOW_SIZE=1_000)
    stream = pair.ask()
    content = bytes(range(256)) * 400
    pair.session.respond(b"HTTP/1.1 200 OK\r\nContent-Length: 102400\r\n\r\n" + content)
    pair.to_client()
    assert len(pair.body(stream)) == 1_000
    while not pair.has_ended(stream):
        before = len(pair.body(stream))
        pair.client.increment_flow_control_window(30_000)
        pair.client.increment_flow_control_window(30_000, stream)
        pair.to_server()
        assert len(pair.body(stream)) > before
    assert pair.body(stream) == content


def test_body_larger_than_the_default_window_is_accepted() -> None:
    pair = Pair()
    pair.client.send_headers(
        1, [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "h")]
    )
    for place in range(200):
        pair.client.send_data(1, b"x" * 16_384, end_stream=place == 199)
        pair.to_server()
    assert pair.requests.endswith(b"x" * 200 * 16_384)


def test_a_ping_is_responded_to() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    pair.to_server()
    assert any(type(event).__name__ == "PingAckReceived" for event in pair.events)


def test_a_client_that_resets_its_stream_has_left() -> None:
    pair = Pair()
    stream = pair.ask()
    pair.client.reset_stream(stream)
    with pytest.raises(Http2Error, match="left its request"):
        pair.to_server()


@pytest.mark.parametrize(
    "data",
    [
        frame(0, 0, 1, b"data of no request"),
        frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
        frame(1, 0, 1, b"") + frame(9, 4, 3, b""),
        frame(4, 0, 0, b"12345"),
        frame(1, 4 | 8, 1, b"\x09"),
        frame(0, 0, 1, b"x" * 16_385),
    ],
)
def test_a_client_that_breaks_the_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(Http2Error):
        Http2Session().receive(data)
