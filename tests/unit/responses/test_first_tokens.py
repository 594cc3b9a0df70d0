"""The first token is found in the read that ends its event, however the bytes are split."""

import json
from typing import Any

import pytest

from aiperf_svc.core.endpoints.chat import CHAT
from aiperf_svc.core.responses.first_tokens import FirstTokens
from aiperf_svc.core.responses.response_format import ResponseFormat
from aiperf_svc.protocol.records import Framing
from tests.support.raw_batches import chunk

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"


def tokens() -> FirstTokens:
    return FirstTokens(ResponseFormat(CHAT, is_streaming=True, keeps_text=False))


def event(**delta: Any) -> bytes:
    body = {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def found_at(*, body: bytes, step: int, head: bytes = HEAD % b"text/event-stream") -> int | None:
    """Return how many bytes had arrived when the first token was found, with reads of `step`."""
    made = tokens()
    raw = bytearray(head)
    for at in range(0, len(body), step):
        raw += body[at : at + step]
        if made.has_come("r", raw, body_offset=len(head), framing=Framing.CHUNKED):
            return min(at + step, len(body))
    return None


ROLE = event(role="assistant", content="")
COMMENT = b": still waiting\n\n"


@pytest.mark.parametrize(
    "first",
    [
        {"content": "a"},
        {"reasoning_content": "b"},
        {"role": "assistant", "content": "c"},
        {"audio": {"id": "e", "data": "QUJD"}},
    ],
)
def test_comments_and_roles_are_no_first_token(first: dict[str, Any]) -> None:
    before = chunk(COMMENT, ROLE, COMMENT)
    body = before + chunk(event(**first), event(content="d"))
    end = len(before) + len(chunk(event(**first)))
    for step in (1, 7, 50):
        found = found_at(body=body, step=step)
        assert found is not None
        assert end - 4 <= found < end + step


def test_responses_without_stream_tokens_have_no_first() -> None:
    end = b"data: [DONE]\n\n"
    assert found_at(body=chunk(ROLE, end), step=9) is None
    error = chunk(b'{"error": {"message": "no"}}')
    assert found_at(body=error, step=9, head=HEAD % b"application/json") is None
    assert found_at(body=chunk(b"data: {no JSON\n\n", event(content="a")), step=9) is None
    assert found_at(body=b"zz\r\nbroken" + chunk(event(content="a")), step=9) is None


def test_requests_are_separate_and_forgotten_ones_restart() -> None:
    made = tokens()
    head = HEAD % b"text/event-stream"
    part, rest = chunk(event(content="a"))[:20], chunk(event(content="a"))[20:]
    for request in ("one", "other"):
        raw = bytearray(head + part)
        assert not made.has_come(request, raw, body_offset=len(head), framing=Framing.CHUNKED)
    made.forget("other")
    whole = bytearray(head + part + rest)
    assert made.has_come("one", whole, body_offset=len(head), framing=Framing.CHUNKED)
    assert made.has_come("other", whole, body_offset=len(head), framing=Framing.CHUNKED)
    assert not made._begun
