"""Extracts the events from a response's body and decodes them.

Nearly every server writes one event, ended by LF LF, into one chunk. Then the chunk's framing and
the event's end are one fixed string, and the variable part is looked up in a cache (`event_cache`).
Most of those events only add a token, of which only the time is kept (`fast_events`). Everything
else (a partial chunk, two events in one chunk, CRLF, a comment) is handled in general: first
chunks, then events, then JSON.
"""

from collections.abc import Iterable
from typing import Final

from aiperf_svc.core.endpoints.base import (
    DONE,
    UNREADABLE,
    Delta,
    MalformedResponse,
    error_message,
    find_error,
    parse_again,
)
from aiperf_svc.core.responses.event_cache import CUT, EventMemo
from aiperf_svc.core.responses.fast_events import AFTER_EVENT, END
from aiperf_svc.core.responses.http1 import ChunkedBody, Piece, chunk_size
from aiperf_svc.core.responses.sse import EventStream
from aiperf_svc.domain.outcomes import ErrorKind
from aiperf_svc.protocol.records import Framing

DecodedEvent = tuple[Delta, int]
"""A decoded event, and the exclusive offset of its end within the input bytes. `[DONE]` is a finish
reason."""

_BEGIN: Final = b"\r\ndata: "
_LINE: Final = len(_BEGIN)
_FRAMED: Final = len("data: ") + len("\n\n")
"""Bytes of such a chunk that do not belong to the event's data."""
_LAST_CHUNK: Final = b"0\r\n\r\n"
_MAX_SIZES: Final = 4_096
ENDED: Final = Delta(finish_reason="[DONE]")

_data_sizes: dict[bytes, int] = {}
"""Length of an event's data by its chunk's size line, since sizes repeat."""


def _data_size(size: bytes) -> int:
    length = chunk_size(size) - _FRAMED
    if len(_data_sizes) < _MAX_SIZES:
        _data_sizes[size] = length
    return length


class ResponseEvents:
    __slots__ = ("_begin", "_chunks", "_events", "_is_chunked", "_memo", "between", "failure")

    def __init__(self, memo: EventMemo, framing: int) -> None:
        self._memo = memo
        self._begin = _begin(memo)
        self._is_chunked = framing == Framing.CHUNKED
        # Created only if the response needs them.
        self._chunks: ChunkedBody | None = None
        self._events: EventStream | None = None
        self.between = b""
        """Bytes before the text of an event, from its size line on, in the form of `fast_events`.
        Empty unless the next byte begins both a chunk and an event other than the first."""
        self.failure: tuple[ErrorKind, str] | None = None
        """Reason why no more events follow: one was malformed, or of type `error`."""

    def feed(self, data: bytes, at: int, stop: int) -> tuple[list[DecodedEvent], int]:
        """Return the next events of `data[at:stop]` up to a token, after which `fast_events` may
        find more, and the offset to continue from (`stop` after a failure). Raises
        ProtocolViolation, EventTooLarge."""
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
            if payload.startswith(DONE):
                found.append((ENDED, end))
            elif is_error:
                self.failure = ErrorKind.SERVER, _message_of(payload)
                break
            else:
                try:
                    delta = self._memo.parse(payload)
                except UNREADABLE as error:
                    if (unusual := self._parse_again(payload, error)) is None:
                        break
                    delta = unusual
                found.append((delta, end))
        self.between = self._begin if self._is_chunked and self._is_between() else b""
        return found, stop

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the incomplete event."""
        return 0 if self._events is None else self._events.held_bytes

    @property
    def is_done_unfinished(self) -> bool:
        """True if the body ends in `[DONE]` without the following empty line."""
        return self._events is not None and self._events.rest.strip() == DONE

    def _parse_again(self, payload: bytes, error: Exception) -> Delta | None:
        """Parse an event that is not JSON but may be valid; None is a failure."""
        try:
            return parse_again(self._memo.parse, payload, error)
        except MalformedResponse as malformed:
            self.failure = ErrorKind.MALFORMED, str(malformed)
            return None

    def _is_between(self) -> bool:
        """Return whether the next byte begins both a chunk and an event."""
        return (self._chunks is None or self._chunks.is_between_chunks) and (
            self._events is None or self._events.is_between_events
        )

    def _split(self, data: bytes, at: int, stop: int, found: list[DecodedEvent]) -> int:
        """Add the events of leading chunks with one event each, up to a token, and return the
        offset after them, including the last chunk if it follows."""
        memo, known, sizes = self._memo, self._memo.known, _data_sizes
        while True:
            end = data.find(END, at, stop)
            if end < 0:
                return stop if data[at:stop] == _LAST_CHUNK else at
            chunk = data[at:end]
            # All events of a response begin alike, so only the size and the rest differ.
            size, begins_alike, rest = chunk.partition(self._begin)
            if begins_alike and rest in known and sizes.get(size) == len(chunk) - len(size) - _LINE:
                delta = known[rest]
            else:
                size, _, payload = chunk.partition(_BEGIN)
                length = sizes[size] if size in sizes else _data_size(size)
                if length != len(payload) or b"\n" in payload or b"\r" in payload:
                    return at
                if payload.startswith(DONE):
                    delta = ENDED
                else:
                    try:
                        delta = memo.parse(payload)
                    except UNREADABLE as error:
                        if (unusual := self._parse_again(payload, error)) is None:
                            return at
                        delta = unusual
                    self._begin = _begin(memo)
            at += len(chunk) + len(END)
            found.append((delta, at - AFTER_EVENT))
            if delta.content or delta.reasoning:
                return at


def _message_of(payload: bytes) -> str:
    """Return the message of an event of type `error`: its data contain an error, are one, or are
    text."""
    found = find_error(payload) or find_error(b'{"error":%b}' % payload)
    return found or error_message(payload)


def _begin(memo: EventMemo) -> bytes:
    """Return the bytes before the text of an event with the latest beginning."""
    return _BEGIN + memo.beginning + CUT
