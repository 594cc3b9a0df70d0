"""What an assistant said, from raw bytes."""

import pytest

from aiperf_svc.config.endpoint import EndpointType
from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.core.responses.text import response_text
from aiperf_svc.protocol.records import Framing

CHAT = ENDPOINTS[EndpointType.CHAT]
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
WHOLE = b'{"choices":[{"message":{"content":"hi there"}}]}'


def event(content: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % content.encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_the_text_of_a_stream_is_its_content_joined_whatever_the_chunks() -> None:
    events = event("hi") + event(" there") + b"data: [DONE]\n\n"
    body = chunk(events[:20]) + chunk(events[20:]) + b"0\r\n\r\n"
    text = response_text(
        HEAD + body,
        body_offset=len(HEAD),
        framing=Framing.CHUNKED,
        is_streaming=True,
        endpoint=CHAT,
    )
    assert text == "hi there"


@pytest.mark.parametrize(
    ("body", "framing"),
    [(WHOLE, Framing.LENGTH), (chunk(WHOLE) + b"0\r\n\r\n", Framing.CHUNKED)],
)
def test_the_text_of_a_whole_response_is_its_content(body: bytes, framing: int) -> None:
    text = response_text(
        HEAD + body, body_offset=len(HEAD), framing=framing, is_streaming=False, endpoint=CHAT
    )
    assert text == "hi there"


def test_what_is_no_response_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="invalid"):
        response_text(
            HEAD + b"{invalid",
            body_offset=len(HEAD),
            framing=Framing.LENGTH,
            is_streaming=False,
            endpoint=CHAT,
        )
