"""Extracts the text of a complete response, for the history of the conversation's next turn."""

from aiperf_svc.core.endpoints.base import DONE, Endpoint
from aiperf_svc.core.responses.http1 import ChunkedBody
from aiperf_svc.core.responses.sse import EventStream
from aiperf_svc.protocol.records import Framing


def response_text(
    raw: bytes, *, body_offset: int, framing: int, is_streaming: bool, endpoint: Endpoint
) -> str:
    """Return the content of a response from its raw bytes, without reasoning and tool calls.

    Raises ValueError (ProtocolViolation, MalformedResponse) if the bytes are not a valid response.
    """
    whole = [(body_offset, len(raw))]
    pieces = ChunkedBody().feed(raw, body_offset, len(raw)) if framing == Framing.CHUNKED else whole
    if not is_streaming:
        return endpoint.parse_body(b"".join(raw[at:stop] for at, stop in pieces)).content
    events = EventStream().feed(raw, pieces)
    return "".join(endpoint.parse_event(data).content for data, _, _ in events if data != DONE)
