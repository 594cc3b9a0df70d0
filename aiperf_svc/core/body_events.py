"""The events of an answer's body, still in its transfer framing.

Nearly every server writes one event, ended by LF LF, into one chunk. Then the chunk's framing and
the event's end are one fixed string, and a whole fragment falls apart into events by one `split`:
a third of the time of taking off first one framing and then the other. Whatever does not look
exactly like that, part of a chunk, two events in one, CRLF, a comment, goes the general way.
"""

from typing import Final

from aiperf_svc.core.http1 import ChunkedBody, chunk_size
from aiperf_svc.core.sse import Event, EventStream
from aiperf_svc.protocol.records import Framing

_END: Final = b"\n\n\r\n"
_BEGIN: Final = b"\r\ndata: "
_FRAMED: Final = len("data: ") + len("\n\n")
"""Bytes of such a chunk that are not the event's data."""
_LAST_CHUNK: Final = b"0\r\n\r\n"
_MAX_KNOWN: Final = 4_096

_data_sizes: dict[bytes, int] = {}
"""Length of the event's data by the chunk's size as it is written; sizes repeat."""


def _data_size(line: bytes) -> int:
    size = chunk_size(line) - _FRAMED
    if len(_data_sizes) < _MAX_KNOWN:
        _data_sizes[line] = size
    return size


class BodyEvents:
    """The events of one body."""

    __slots__ = ("_chunks", "_events", "_is_chunked")

    def __init__(self, framing: int) -> None:
        self._is_chunked = framing == Framing.CHUNKED
        # Made only for a body that needs them.
        self._chunks: ChunkedBody | None = None
        self._events: EventStream | None = None

    def feed(self, data: bytes, at: int, stop: int) -> list[Event]:
        """The events that end within `data[at:stop]`. Raises ProtocolViolation."""
        events: list[Event] = []
        if not self._is_chunked:
            if self._events is None:
                self._events = EventStream()
            return self._events.feed(data, ((at, stop),))
        if self._is_between_chunks():
            at = _split(data, at, stop, events)
            if at == stop:
                return events
        if self._chunks is None or self._events is None:
            self._chunks, self._events = ChunkedBody(), EventStream()
            if events:
                self._events.has_begun()
        events += self._events.feed(data, self._chunks.feed(data, at, stop))
        return events

    @property
    def rest(self) -> bytes:
        """Data of an event that is not complete."""
        return self._events.rest if self._events is not None else b""

    def _is_between_chunks(self) -> bool:
        return (self._chunks is None or self._chunks.is_between_chunks) and (
            self._events is None or self._events.is_between_events
        )


def _split(data: bytes, at: int, stop: int, events: list[Event]) -> int:
    """Add the events of the leading chunks that hold one plain event each, and return the offset
    after them; after the last chunk too, when that follows."""
    end = at
    parts = data[at:stop].split(_END)
    rest = parts.pop()
    sizes, add = _data_sizes, events.append
    for part in parts:
        size, _, payload = part.partition(_BEGIN)
        if (sizes[size] if size in sizes else _data_size(size)) != len(payload):
            break
        end += len(part) + 4
        add((payload, end - 2, False))
    # Any line end beside the six bytes of the framing would be one within an event.
    plain = data[at:end].translate(None, b"\r\n")
    if end - at - len(plain) != 6 * len(events):
        events.clear()
        return at
    return stop if rest == _LAST_CHUNK and len(events) == len(parts) else end
