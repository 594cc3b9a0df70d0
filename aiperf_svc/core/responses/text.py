"""The bytes of a complete response without their framing, used to build the history of a
conversation's next turn; the size of texts, and whether the events of a stream repeat
them."""

from collections.abc import Sequence
from itertools import pairwise

from aiperf_svc.core.endpoints.base import DONE, MalformedResponse
from aiperf_svc.core.endpoints.history import Conversations, Reply
from aiperf_svc.core.responses.http1 import ChunkedBody
from aiperf_svc.core.responses.sse import EventStream
from aiperf_svc.protocol.records import Framing


def reply_of(
    raw: bytes, *, body_offset: int, framing: int, is_streaming: bool, api: Conversations
) -> Reply:
    """Return a response's addition to the history of its conversation, from its raw bytes.

    Raises ValueError (ProtocolViolation, MalformedResponse) if the bytes are not a valid response.
    """
    whole = [(body_offset, len(raw))]
    pieces = ChunkedBody().feed(raw, body_offset, len(raw)) if framing == Framing.CHUNKED else whole
    if not is_streaming:
        return api.read_body(b"".join(raw[at:stop] for at, stop in pieces))
    events = EventStream().feed(raw, pieces)
    if any(is_error for _, _, is_error in events):
        raise MalformedResponse("an event of type error")
    return api.read_events([data for data, _, _ in events if not data.startswith(DONE)])


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def is_repeated(texts: Sequence[str]) -> bool:
    """Return whether each text extends the previous one, because each event of SGLang's `/generate`
    contains the whole text so far.

    At least three lengths are required, since one of two increments can begin with the other.
    """
    is_grown = all(later.startswith(earlier) for earlier, later in pairwise(texts))
    return is_grown and len(set(map(len, texts))) >= 3
