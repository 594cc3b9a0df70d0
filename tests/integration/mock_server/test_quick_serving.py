"""The compiled code replies to known requests and does not change a server's behaviour."""

import contextlib
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.mock_server import quick_serving, serving_state
from aiperf_svc.mock_server.accounts import Account
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.connections import Connections
from aiperf_svc.mock_server.replies import Ending, Reply
from aiperf_svc.mock_server.requests import split_request_id
from aiperf_svc.mock_server.running import running
from tests.support.bare_client import connected, loopback_pair, received, request_bytes

pytestmark = pytest.mark.skipif(
    quick_serving.compiled is None,  # type: ignore[attr-defined]
    reason="the steps are not compiled: `make`",
)

REPLY = Reply(
    status=200,
    writes=[b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"],
    early=0,
    delay_tokens=0,
    ending=Ending.KEEP,
)
HUGE = Reply(status=200, writes=[bytes(8 << 20)], early=0, delay_tokens=0, ending=Ending.KEEP)
REQUEST = b"POST /v1/x HTTP/1.1\r\nHost: mock\r\n\r\n{}"


class Desk:
    """Compiled events with a single connection."""

    def __init__(self, server: socket.socket, client: socket.socket) -> None:
        assert quick_serving.compiled is not None  # type: ignore[attr-defined]
        self.client = client
        self.account = Account(row_limit=None)
        self.connections = Connections(self.account, keepalive_ns=0)
        self.quick: dict[bytes, Reply] = {}
        self.events = quick_serving.compiled.QuickEvents(  # type: ignore[attr-defined]
            self.connections.epoll, self.connections.table, self.quick, self.account
        )
        sock = server.dup()
        sock.setblocking(False)
        self.connections.open(sock)
        found = self.connections.table[sock.fileno()]
        assert found is not None
        self.connection = found

    def serve(self) -> quick_serving.Unhandled | None:
        """Wait for events and process them."""
        self.connections.epoll.poll(20)
        self.events.poll(False)
        return self.events.next_unhandled()

    def close(self) -> None:
        if self.connection.fd >= 0:
            self.connections.close(self.connection)
        self.connections.epoll.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    with loopback_pair() as pair, contextlib.closing(Desk(*pair)) as made:
        yield made


def request_with_id(rng: random.Random) -> bytes:
    """Return a request that equals or resembles a known one, and may contain an id."""
    lines = [b"Host: mock", b"Content-Length: 2", b"X-Other: x-request-id: 4", b"X", b"a\rb"]
    ids = [b"X-Request-Id: 17", b"x-request-ID:", b"X-REQUEST-ID:\t a\rb ", b"X-Request-Id : 5"]
    lines += rng.choices(ids, k=rng.randint(0, 2))
    rng.shuffle(lines)
    end = rng.choice((b"\r\n\r\n", b"\r\n\r\n", b"\r\n", b"", b"\r\r\n\r\n"))
    body = rng.choice((b"{}", b"", b"\r\nX-Request-Id: 5\r\n", b"\r"))
    return b"\r\n".join([b"POST /v1/x HTTP/1.1", *lines[rng.randint(0, 3) :]]) + end + body


def test_request_is_recognised_without_its_id(desk: Desk) -> None:
    rng, served = random.Random(4), 0
    for _ in range(600):
        request = request_with_id(rng)
        end = request.find(b"\r\n\r\n")
        desk.quick.clear()
        if end >= 0:
            head, _ = split_request_id(request[:end])
            desk.quick[head + request[end:]] = REPLY
        desk.client.sendall(request)
        left = desk.serve()
        if end >= 0:
            assert left is None, request
            assert received(desk.client, len(REPLY.writes[0])) == REPLY.writes[0]
            served += 1
        else:
            assert left == (desk.connection.fd, 1, request, None, 0)
    counters = {name: value for name, value in desk.account.counters().items() if value}
    assert counters["requests"] == counters["completed"] == counters["writes"] == served > 100
    assert counters["bytes_out"] == served * len(REPLY.writes[0])
    assert counters["max_in_flight"] == 1
    assert "in_flight" not in counters


def test_unknown_requests_are_returned_with_their_bytes(desk: Desk) -> None:
    desk.quick[REQUEST] = REPLY
    for request in (REQUEST + REQUEST, REQUEST[:-1], REQUEST.replace(b"{}", b"[]")):
        desk.client.sendall(request)
        assert desk.serve() == (desk.connection.fd, 1, request, None, 0)
    assert desk.account.requests == 0


def test_unexpected_input_is_not_read(desk: Desk) -> None:
    desk.quick[REQUEST] = REPLY
    desk.client.sendall(REQUEST)
    desk.connection.reply = REPLY
    assert desk.serve() == (desk.connection.fd, 1, None, None, 0)
    desk.connection.reply, desk.connection.inbuf = None, bytearray(b"POST")
    assert desk.serve() == (desk.connection.fd, 1, None, None, 0)
    desk.connection.inbuf = None
    assert desk.serve() is None
    assert received(desk.client, len(REPLY.writes[0])) == REPLY.writes[0]


def test_partly_sent_reply_is_left_with_its_rest(desk: Desk) -> None:
    desk.quick[REQUEST] = HUGE
    desk.client.sendall(REQUEST)
    left = desk.serve()
    assert left is not None
    *event, reply, sent = left
    assert (event, reply) == ([desk.connection.fd, 1, REQUEST], HUGE)
    assert 0 < sent < len(HUGE.writes[0])
    assert desk.account.requests == desk.account.writes == 0
    assert received(desk.client, sent) == HUGE.writes[0][:sent]


def test_connection_end_is_left_as_no_bytes(desk: Desk) -> None:
    desk.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    desk.client.close()
    left = desk.serve()
    assert left is not None
    assert (left[0], left[2:]) == (desk.connection.fd, (b"", None, 0))


# Whole servers


def inputs() -> list[list[bytes]]:
    """Return the requests of each client as a list of pieces."""
    rng, found = random.Random(9), []
    asks = [
        request_bytes(stream=False),
        request_bytes(stream=True, max_tokens=5),
        request_bytes(stream=True, max_tokens=1),
        request_bytes(stream=False, headers={"X-Mock-Fault": "error-503"}),
        request_bytes("/v1/completions", prompt="a b"),
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 3\r\n\r\n{x}",
    ]
    for number in range(150):
        ask = rng.choice(asks)
        if rng.random() < 0.5:
            name = rng.choice((b"X-Request-Id", b"x-request-id", b"X-REQUEST-ID"))
            ask = ask.replace(b"\r\n", b"\r\n%b: %d\r\n" % (name, number), 1)
        cut = rng.randint(1, len(ask) - 1) if rng.random() < 0.3 else len(ask)
        found.append([ask[:cut], ask[cut:]] if cut < len(ask) else [ask])
    return found


def served() -> tuple[list[tuple[int, bytes]], dict[str, Any]]:
    """Return a server's responses to the inputs, and its counters."""
    responses = []
    with (
        running(MockServerConfig(tokens=1)) as server,
        connected(server) as one,
        connected(server) as other,
    ):
        for number, pieces in enumerate(inputs()):
            client = (one, other)[number % 2]
            for piece in pieces:
                client.send(piece)
            status, body = client.response()
            responses.append((status, body))
        one.send(request_bytes(stream=False) * 3)
        responses += [one.response() for _ in range(3)]
        truth = server.truth()
    return responses, truth


def without_times(responses: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Remove the start time of the server, which responses contain."""
    return [(status, re.sub(rb'"created":\d+', b"", body)) for status, body in responses]


@pytest.mark.skipif(serving_state.compiled is None, reason="the steps are not compiled: `make`")  # type: ignore[attr-defined]
@pytest.mark.parametrize(
    ("kind", "plain"),
    [("Connection", serving_state.PlainConnectionState), ("Tally", serving_state.PlainTally)],
)
def test_compiled_fields_equal_interpreted_ones(kind: str, plain: type[Any]) -> None:
    fields = getattr(serving_state.compiled, kind)  # type: ignore[attr-defined]
    assert {name for name in dir(fields) if not name.startswith("__")} == set(plain.__slots__)


def test_server_without_compiled_steps_behaves_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    responses, truth = served()
    hidden = f"{quick_serving.__package__}._quick_serving"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{hidden!r}] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plain_responses, plain_truth = served()
    assert without_times(responses) == without_times(plain_responses)
    assert truth == plain_truth
    assert {status for status, _ in responses} == {200, 400, 503}
    assert truth["requests"] > 100
