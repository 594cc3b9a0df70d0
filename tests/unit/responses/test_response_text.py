"""What an assistant said, from raw bytes."""

import pytest

from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.core.responses.text import what_was_said
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.protocol.records import Framing

CHAT = ENDPOINTS[EndpointType.CHAT]
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
WHOLE = b'{"choices":[{"message":{"content":"hi there"}}]}'


def event(content: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % content.encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_text_of_a_stream_joins_its_chunks() -> None:
    events = event("hi") + event(" there") + b"data: [DONE]\n\n"
    body = chunk(events[:20]) + chunk(events[20:]) + b"0\r\n\r\n"
    said = what_was_said(
        HEAD + body,
        body_offset=len(HEAD),
        framing=Framing.CHUNKED,
        is_streaming=True,
        endpoint=CHAT,
    )
    assert said == ("hi there", False)


@pytest.mark.parametrize(
    ("body", "framing"),
    [(WHOLE, Framing.LENGTH), (chunk(WHOLE) + b"0\r\n\r\n", Framing.CHUNKED)],
)
def test_the_text_of_a_whole_response_is_its_content(body: bytes, framing: int) -> None:
    said = what_was_said(
        HEAD + body, body_offset=len(HEAD), framing=framing, is_streaming=False, endpoint=CHAT
    )
    assert said == ("hi there", False)


@pytest.mark.parametrize("is_streaming", [True, False])
def test_tool_calls_are_noticed(is_streaming: bool) -> None:
    calls = b'"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]'
    data = b'{"choices":[{"%b":{"content":null,%b}}]}'
    data %= b"delta" if is_streaming else b"message", calls
    body = b"data: " + data + b"\n\n" if is_streaming else data
    said = what_was_said(
        HEAD + body,
        body_offset=len(HEAD),
        framing=Framing.LENGTH,
        is_streaming=is_streaming,
        endpoint=CHAT,
    )
    assert said == ("", True)


def test_what_is_no_response_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="invalid"):
        what_was_said(
            HEAD + b"{invalid",
            body_offset=len(HEAD),
            framing=Framing.LENGTH,
            is_streaming=False,
            endpoint=CHAT,
        )
