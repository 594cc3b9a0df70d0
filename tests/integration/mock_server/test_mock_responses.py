"""Responses of the mock server, however the bytes of requests are split."""

import base64
import json
import socket
from typing import Any

import pytest

from aiperf_svc.mock_server.running import RunningMockServer
from tests.support.bare_client import connected, events_of, request_bytes


def test_stream_ends_with_done_and_requested_usage(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        client.send(request_bytes(stream_options={"include_usage": True}))
        status, body = client.response()
    *_, usage, done = events_of(body)
    assert (status, done) == (200, b"[DONE]")
    assert json.loads(usage)["usage"]["completion_tokens"] == 3


def test_every_endpoint_responds_on_one_kept_connection(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        chat = json.loads(client.send(request_bytes(stream=False)).response()[1])
        assert chat["choices"][0]["message"]["content"] == "the quick model"
        text = json.loads(client.send(request_bytes("/v1/completions", prompt="a b")).response()[1])
        assert text["usage"]["prompt_tokens"] == 2
        wanted: dict[str, Any] = {"input": ["a", "b"], "encoding_format": "base64"}
        found = json.loads(client.send(request_bytes("/v1/embeddings", **wanted)).response()[1])
        assert len(base64.b64decode(found["data"][1]["embedding"])) == 8 * 4
        models = json.loads(client.send(b"GET /v1/models HTTP/1.1\r\n\r\n").response()[1])
        assert models["data"][0]["id"] == "mock-model"
        assert client.send(b"GET /healthz HTTP/1.1\r\n\r\n").response()[0] == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\n\r\n", 405),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 3\r\n\r\n{x}", 400),
        (request_bytes(headers={"X-Mock-Fault": "no-such-fault"}), 400),
    ],
)
def test_bad_request_keeps_the_connection(
    plain: RunningMockServer, data: bytes, status: int
) -> None:
    with connected(plain) as client:
        assert client.send(data).response()[0] == status
        assert client.send(request_bytes()).response()[0] == 200


@pytest.mark.parametrize("data", [b"\x16\x03\x01 hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_invalid_http_closes_the_connection(plain: RunningMockServer, data: bytes) -> None:
    with connected(plain) as client:
        assert client.send(data).response()[0] == 400
        assert client.rest() == b""


def test_request_split_at_every_byte_is_the_same(plain: RunningMockServer) -> None:
    data = request_bytes(headers={"X-Request-Id": "split"}, max_tokens=1)
    with connected(plain) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = client.send(data).response()
        for at in range(1, len(data)):
            client.send(data[:at])
            client.send(data[at:])
            assert client.response() == whole
        for at in range(len(data)):
            client.send(data[at : at + 1])
        assert client.response() == whole


def test_pipelined_requests_get_responses_in_order(plain: RunningMockServer) -> None:
    lengths = [1, 3, 2, 1, 1, 3]
    with connected(plain) as client:
        client.send(b"".join(request_bytes(max_tokens=tokens) for tokens in lengths))
        events = [len(events_of(client.response()[1])) for _ in lengths]
    assert events == [tokens + 2 for tokens in lengths]


def test_pipelined_request_waits_for_a_paced_stream(witness: RunningMockServer) -> None:
    with connected(witness) as client:
        client.send(request_bytes(max_tokens=3) + request_bytes(max_tokens=2)[:40])
        client.send(request_bytes(max_tokens=2)[40:])
        assert [len(events_of(client.response()[1])) for _ in range(2)] == [5, 4]


def test_connection_close_is_honoured(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        client.send(request_bytes(headers={"Connection": "close"}))
        assert client.response()[0] == 200
        assert client.rest() == b""


def test_a_client_that_waits_for_continue_gets_it(plain: RunningMockServer) -> None:
    head, _, body = request_bytes(headers={"Expect": "100-continue"}).partition(b"\r\n\r\n")
    with connected(plain) as client:
        client.send(head + b"\r\n\r\n")
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        assert client.send(body).response()[0] == 200


def test_large_body_is_read_completely(plain: RunningMockServer) -> None:
    words = "word " * 400_000
    with connected(plain) as client:
        client.send(request_bytes(stream=False, messages=[{"role": "user", "content": words}]))
        assert json.loads(client.response()[1])["usage"]["prompt_tokens"] == 400_000
