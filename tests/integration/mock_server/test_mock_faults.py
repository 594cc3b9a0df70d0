"""Faults that a client requests by name, and faults at a given rate."""

import gzip
import json
import time

import pytest

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.faults import FAULTS, HUGE_BYTES
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.bare_client import HANG_GUARD_S, Client, connected, events_of, request_bytes


@pytest.mark.parametrize("by_header", [True, False])
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_fault_affects_only_the_request_that_names_it(
    plain: RunningMockServer, name: str, by_header: bool
) -> None:
    if by_header:
        data = request_bytes(headers={"X-Mock-Fault": name})
    else:
        data = request_bytes(model=f"mock-{name}")
    hangs = plain.truth()["hangs"] + (name in ("hang", "stall"))
    with connected(plain) as client:
        client.send(data)
        _check_fault(client, name)
        deadline = time.monotonic() + HANG_GUARD_S
        while plain.truth()["hangs"] < hangs:
            assert time.monotonic() < deadline, "the request does not hang"
        if name == "hang":
            assert client.is_silent()
    with connected(plain) as client:
        assert client.send(request_bytes()).response()[0] == 200


def _check_fault(client: Client, name: str) -> None:
    if name == "hang":
        return  # no data will arrive
    if name in ("stall", "never-ends"):
        for _ in range(1 if name == "stall" else 10):
            client.until(b"data: ")
    elif name in ("close", "garbage", "short-body", "bad-chunk-size", "cut", "no-last-chunk"):
        received = client.rest()
        assert (received == b"") is (name == "close")
        assert not received.endswith(b"0\r\n\r\n")
    elif name == "reset":
        with pytest.raises(ConnectionResetError):
            client.rest()
    else:
        _check_response(name, *client.response())


def _check_response(name: str, status: int, body: bytes) -> None:
    assert status == 200
    if name == "invalid-utf8":
        with pytest.raises(UnicodeDecodeError):
            body.decode()
    elif name == "malformed":
        with pytest.raises(json.JSONDecodeError):
            json.loads(events_of(body)[1])
    elif name == "huge-chunk":
        assert len(body) > HUGE_BYTES
    elif name == "error-in-stream":
        assert b'"error"' in body
    elif name == "wrong-content-type":
        assert b"<!doctype html>" in body
    elif name == "empty":
        assert b'"content":"the"' not in body
    elif name == "crlf":
        assert b"\n\n" not in body
    elif name == "compressed":
        assert b" quick" in gzip.decompress(body)
    elif name == "ends-at-once":
        assert b'"content":"the"' not in body
        assert b'"finish_reason":"stop"' in body
    elif name in ("abort", "content-filter"):
        assert b'"finish_reason":"%b"' % name.replace("-", "_").encode() in body
        assert b"[DONE]" in body
    else:
        legal = ("one-byte-writes", "one-chunk", "padded-chunks")
        assert name in ("no-done", "no-usage", *legal), f"{name}: no check"
        assert b" quick" in body
        assert (b"[DONE]" in body) is (name != "no-done")


def test_model_name_chooses_an_error_status(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        status, body = client.send(request_bytes(model="mock-error-429")).response()
    assert (status, json.loads(body)["error"]["code"]) == (429, 429)


def test_fault_rates_are_met_and_accounted() -> None:
    config = MockServerConfig(tokens=1, error_rate=0.3, error_status=503, malformed_rate=0.2)
    count = 1_000
    with running(config) as server:
        with connected(server) as client:
            client.send(request_bytes() * count)
            responses = [client.response() for _ in range(count)]
        truth = server.truth()
    errors = sum(status == 503 for status, _ in responses)
    malformed = sum(b'"content":\n\n' in body for _, body in responses)
    assert errors == pytest.approx(300, abs=60)  # four standard deviations
    assert malformed == pytest.approx(200, abs=51)
    assert (truth["errors"], truth["completed"]) == (errors, count - errors)


def _data(body: bytes) -> list[bytes]:
    return [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "status", "error", "details"),
    [
        ("abort", "failed", {"code": "server_error", "message": "mock abort"}, None),
        ("content-filter", "incomplete", None, {"reason": "content_filter"}),
    ],
)
def test_responses_api_states_an_end_as_a_status(
    plain: RunningMockServer,
    fault: str,
    status: str,
    error: object,
    details: object,
    is_stream: bool,
) -> None:
    request = request_bytes("/v1/responses", input="x", stream=is_stream, model=f"mock-{fault}")
    with connected(plain) as client:
        code, body = client.send(request).response()
    whole = json.loads(_data(body)[-1] if is_stream else body)
    if is_stream:
        assert whole["type"] == f"response.{status}"
        assert b"event: response.%b\n" % status.encode() in body
        assert body.count(b"output_text.delta\n") == (1 if fault == "abort" else 3)
        whole = whole["response"]
    assert code == 200
    assert (whole["status"], whole["error"], whole["incomplete_details"]) == (
        status,
        error,
        details,
    )


@pytest.mark.parametrize("is_stream", [True, False])
def test_messages_api_states_a_filter_as_a_refusal(
    plain: RunningMockServer, is_stream: bool
) -> None:
    request = request_bytes(
        "/v1/messages", messages=[], max_tokens=3, stream=is_stream, model="mock-content-filter"
    )
    with connected(plain) as client:
        code, body = client.send(request).response()
    found = json.loads(_data(body)[-2] if is_stream else body)
    assert code == 200
    assert (found["delta"] if is_stream else found)["stop_reason"] == "refusal"


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/v1/messages", "abort"),
        ("/generate_stream", "abort"),
        ("/generate_stream", "content-filter"),
        ("/v1/embeddings", "content-filter"),
    ],
)
def test_ending_that_the_api_lacks_is_refused(
    plain: RunningMockServer, path: str, fault: str
) -> None:
    request = request_bytes(
        path, messages=[], max_tokens=3, inputs="x", input="x", headers={"X-Mock-Fault": fault}
    )
    with connected(plain) as client:
        code, body = client.send(request).response()
    assert code == 400
    assert f"{fault}: this API states no such end".encode() in body
