"""The text that a response adds to a history, from raw bytes."""

import json

import pytest

from aiperf_svc.core.endpoints.chat import CONVERSATIONS
from aiperf_svc.core.responses.text import reply_of
from aiperf_svc.protocol.records import Framing
from tests.support.raw_batches import chunk

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
WHOLE = b'{"choices":[{"message":{"content":"hi there"}}]}'


def event(content: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % content.encode()


def content_of(body: bytes, framing: int, *, is_streaming: bool) -> str:
    reply = reply_of(
        HEAD + body,
        body_offset=len(HEAD),
        framing=framing,
        is_streaming=is_streaming,
        api=CONVERSATIONS,
    )
    content: str = json.loads(reply.items)["content"]
    return content


def test_content_of_a_stream_joins_its_chunks() -> None:
    events = event("hi") + event(" there") + b"data: [DONE]\n\n"
    body = chunk(events[:20]) + chunk(events[20:]) + b"0\r\n\r\n"
    assert content_of(body, Framing.CHUNKED, is_streaming=True) == "hi there"


@pytest.mark.parametrize(
    ("body", "framing"), [(WHOLE, Framing.LENGTH), (chunk(WHOLE) + b"0\r\n\r\n", Framing.CHUNKED)]
)
def test_content_of_a_whole_response(body: bytes, framing: int) -> None:
    assert content_of(body, framing, is_streaming=False) == "hi there"


def test_invalid_response_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="invalid"):
        content_of(b"{invalid", Framing.LENGTH, is_streaming=False)


def test_event_of_type_error_is_a_value_error() -> None:
    body = b'event: error\ndata: {"error":{"message":"broken"}}\n\n'
    with pytest.raises(ValueError, match="type error"):
        content_of(body, Framing.LENGTH, is_streaming=True)
