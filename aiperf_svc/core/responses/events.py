"""The events of a response's body, out of its transfer framing and decoded.

Nearly every server writes one event, ended by LF LF, into one chunk. Then the chunk's framing and
the event's end are one fixed string, and what differs between events is looked up (`event_memo`).
Most of those only add a token, of which nothing is left but its time (`fast_events`). What does
not look exactly like that (part of a chunk, two events in one, CRLF, a comment) goes the general
way: first the chunks, then the events, then JSON.
"""

from collections.abc import Iterable
from typing import Final

from aiperf_svc.core.endpoints.base import DONE, Delta, MalformedResponse, error_message
from aiperf_svc.core.responses.event_cache import CUT, EventMemo
from aiperf_svc.core.responses.fast_events import AFTER_EVENT, END
from aiperf_svc.core.responses.http1 import ChunkedBody, Piece, chunk_size
from aiperf_svc.core.responses.sse import EventStream
from aiperf_svc.domain.outcomes import ErrorKind
from aiperf_svc.protocol.records import Framing

DecodedEvent = tuple[Delta, int]
"""What an event says; its end, exclusive, within the bytes that were fed. `[DONE]` is a finish
reason."""

_BEGIN: Final = b"\r\ndata: "
_LINE: Final = len(_BEGIN)
_FRAMED: Final = len("data: ") + len("\n\n")
"""Bytes of such a chunk that are not the event's data."""
_LAST_CHUNK: Final = b"0\r\n\r\n"
_MAX_SIZES: Final = 4_096
ENDED: Final = Delta(finish_reason="[DONE]")

_data_sizes: dict[bytes, int] = {}
"""Length of an event's data by its chunk's size as it is written: sizes repeat."""


def _data_size(size: bytes) -> int:
    length = chunk_size(size) - _FRAMED
    if len(_data_sizes) < _MAX_SIZES:
        _data_sizes[size] = length
    return length


class ResponseEvents:
    """The events of one response."""

    __slots__ = ("_begin", "_chunks", "_events", "_is_chunked", "_memo", "between", "failure")

    def __init__(self, memo: EventMemo, framing: int) -> None:
        self._memo = memo
        self._begin = _begin(memo)
        self._is_chunked = framing == Framing.CHUNKED
        # Made only for a response that needs them.
        self._chunks: ChunkedBody | None = None
        self._events: EventStream | None = None
        self.between = b""
        """What goes before the text of an event, from its size's line on, as `fast_events` takes
        it; empty where the next byte does not begin both a chunk and an event that is not the
        first."""
        self.failure: tuple[ErrorKind, str] | None = None
        """Why there are no further events: one was malformed, or of type `error`."""

    def feed(self, data: bytes, at: int, stop: int) -> tuple[list[DecodedEvent], int]:
        """The next events of `data[at:stop]`, up to a token, after which `fast_events` may find
        more; the offset to go on from. That is `stop` after a failure. Raises ProtocolViolation,
        EventTooLarge."""
        found: list[DecodedEvent] = []
        if self._is_chunked and self._is_between():
            at = self._split(data, at, stop, found)
            if self.failure is not None:
                return found, stop
            if found or at == stop:
                self.between = self._begin
                return found, at
        if self._events is None:
            self._events = EventStream(has_begun=self.between != b"")
        pieces: Iterable[Piece] = ((at, stop),)
        if self._is_chunked:
            if self._chunks is None:
                self._chunks = ChunkedBody()
            pieces = self._chunks.feed(data, at, stop)
        for payload, end, is_error in self._events.feed(data, pieces):
            if payload == DONE:
                found.append((ENDED, end))
            elif is_error:
                self.failure = ErrorKind.SERVER, error_message(payload)
                break
            else:
                try:
                    found.append((self._memo.parse(payload), end))
                except MalformedResponse as error:
                    self.failure = ErrorKind.MALFORMED, str(error)
                    break
        self.between = self._begin if self._is_chunked and self._is_between() else b""
        return found, stop

    @property
    def held_bytes(self) -> int:
        """Roughly what the event that is not complete takes."""
        return 0 if self._events is None else self._events.held_bytes

    @property
    def is_done_unfinished(self) -> bool:
        """Whether the body ends in a `[DONE]` that lacks its empty line."""
        return self._events is not None and self._events.rest.strip() == DONE

    def _is_between(self) -> bool:
        """Whether the next byte begins both a chunk and an event."""
        return (self._chunks is None or self._chunks.is_between_chunks) and (
            self._events is None or self._events.is_between_events
        )

    def _split(self, data: bytes, at: int, stop: int, found: list[DecodedEvent]) -> int:
        """Add the events of the leading chunks that hold one event each, up to a token, and return
        the offset after them; after the last chunk too, when that follows."""
        memo, known, sizes = self._memo, self._memo.known, _data_sizes
        while True:
            end = data.find(END, at, stop)
            if end < 0:
                return stop if data[at:stop] == _LAST_CHUNK else at
            chunk = data[at:end]
            # All events of a response begin alike: what is left is a known size and a known rest.
            size, begins_alike, rest = chunk.partition(self._begin)
            if begins_alike and rest in known and sizes.get(size) == len(chunk) - len(size) - _LINE:
                delta = known[rest]
            else:
                size, _, payload = chunk.partition(_BEGIN)
                length = sizes[size] if size in sizes else _data_size(size)
                if length != len(payload):
                    return at
                if payload == DONE:
                    delta = ENDED
                elif b"\n" in payload or b"\r" in payload:
                    return at
                else:
                    try:
                        delta = memo.parse(payload)
                    except MalformedResponse as error:
                        self.failure = ErrorKind.MALFORMED, str(error)
                        return at
                    self._begin = _begin(memo)
            at += len(chunk) + len(END)
            found.append((delta, at - AFTER_EVENT))
            if delta.content or delta.reasoning:
                return at


def _begin(memo: EventMemo) -> bytes:
    """What goes before the text of an event that begins as the latest."""
    return _BEGIN + memo.beginning + CUT
