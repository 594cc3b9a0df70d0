"""The text of a complete response: that of the history of a conversation's next turn, its size, and
whether the events of a stream repeat it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from aiperf_svc.core.endpoints.base import (
    DONE,
    Delta,
    Endpoint,
    MalformedResponse,
    parse_again,
)
from aiperf_svc.core.responses.http1 import ChunkedBody
from aiperf_svc.core.responses.sse import EventStream
from aiperf_svc.protocol.records import Framing


class Said(NamedTuple):
    """What goes into the history of the next turn."""

    text: str
    """The content, without reasoning and tool calls."""
    calls_tools: bool
    """Whether there were tool calls, of which a history has none."""


def what_was_said(
    raw: bytes, *, body_offset: int, framing: int, is_streaming: bool, endpoint: Endpoint
) -> Said:
    """Return what an assistant said from the raw bytes of its response.

    Raises ValueError (ProtocolViolation, MalformedResponse) if the bytes are not a valid response.
    """
    whole = [(body_offset, len(raw))]
    pieces = ChunkedBody().feed(raw, body_offset, len(raw)) if framing == Framing.CHUNKED else whole
    if not is_streaming:
        body = b"".join(raw[at:stop] for at, stop in pieces)
        deltas = [_parsed(endpoint.parse_body, body)]
    else:
        events = EventStream().feed(raw, pieces)
        deltas = [_parsed(endpoint.parse_event, data) for data, _, _ in events]
    text = "".join(delta.content for delta in deltas)
    return Said(text, any(delta.tool_calls for delta in deltas))


def _parsed(parse: Callable[[bytes], Delta], data: bytes) -> Delta:
    if data == DONE:
        return Delta()
    try:
        return parse(data)
    except (MalformedResponse, RecursionError) as error:
        return parse_again(parse, data, error)


def utf8_size(text: str) -> int:
    """Return the bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def is_repeated(texts: Sequence[str]) -> bool:
    """Return whether each text is the one before it with more behind, as each event of SGLang's
    `/generate` has the whole text so far.

    Three lengths at least are asked for: of two increments, one can begin with the other.
    """
    is_grown = all(later.startswith(earlier) for earlier, later in pairwise(texts))
    return is_grown and len(set(map(len, texts))) >= 3
