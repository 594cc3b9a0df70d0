"""Parses server-sent events (WHATWG HTML, section 9.2.6) that arrive in arbitrary parts.

An event is complete with the byte that ends its empty line, which may be LF, CR, or the CR of a
CRLF (the LF may arrive much later, and no reader waits for it). The position of that byte is
reported with the event, so the caller can look up its time.
"""

from collections.abc import Iterable
from typing import Final

from aiperf_svc.core.responses.http1 import Piece

_LF: Final = 0x0A
_SPACE: Final = 0x20
_BOM: Final = b"\xef\xbb\xbf"

MAX_EVENT_BYTES: Final = 80 * 2**20
"""Maximum bytes of an incomplete event. Large ones are images; beyond this no end is expected."""
_PART_BYTES: Final = 64
"""Memory overhead of a part of such an event."""

_ERROR: Final = b"error"
_KEEP_ALIVE_TYPES: Final = frozenset((b"ping", b"keepalive", b"keep-alive", b"heartbeat"))
"""Types of events that only keep a connection open, whatever their data."""

Event = tuple[bytes, int, bool]
"""Data with lines joined by LF; exclusive end within the input bytes; True if its type is
`error`."""


class EventTooLarge(ValueError):
    """An event exceeds `MAX_EVENT_BYTES`."""


class EventStream:
    """One stream of events. Between calls it keeps only the incomplete event."""

    __slots__ = ("_after_cr", "_data", "_is_first_line", "_line", "_type", "held_bytes")

    def __init__(self, *, has_begun: bool = False) -> None:
        """Start a stream. With `has_begun`, its beginning was parsed elsewhere."""
        self._line: list[bytes] | None = None
        """Parts of an unfinished line, joined only once, since a line may have many thousands."""
        self._data: list[bytes] | None = None
        self.held_bytes = 0
        """Approximate memory of the incomplete event."""
        self._type = b""
        """Type of the incomplete event, if it affects the parsing."""
        self._after_cr = False
        self._is_first_line = not has_begun

    def feed(self, source: bytes, pieces: Iterable[Piece]) -> list[Event]:
        """Return the events that end within the given pieces of `source`, except those without
        data and those that only keep the connection open.

        Raises EventTooLarge.
        """
        events: list[Event] = []
        add, find, startswith = events.append, source.find, source.startswith
        is_clean = self.is_between_events
        for at, stop in pieces:
            while at < stop:
                if is_clean and startswith(b"data:", at):
                    # Most events are one line of data and an empty line, both ended by LF.
                    eol = find(b"\n", at, stop)
                    if 0 < eol < stop - 1 and source[eol + 1] == _LF and find(b"\r", at, eol) < 0:
                        begin = at + 6 if source[at + 5] == _SPACE else at + 5
                        at = eol + 2
                        add((source[begin:eol], at, False))
                        continue
                at = self._handle_line(source, at, stop, events)
                is_clean = self.is_between_events
        if events:
            self._is_first_line = False
        return events

    @property
    def is_between_events(self) -> bool:
        """True if the next byte begins an event."""
        return self._line is None and self._data is None and not self._after_cr and not self._type

    @property
    def rest(self) -> bytes:
        """Data of the incomplete event, which is not an event according to the standard."""
        lines = list(self._data or ())
        line = b"".join(self._line or ())
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        return b"\n".join(lines)

    def _handle_line(self, source: bytes, at: int, stop: int, events: list[Event]) -> int:
        """Read to the end of a line or of the piece. Returns the offset reached."""
        if self._after_cr:
            self._after_cr = False
            if source[at] == _LF:
                return at + 1
        eol = source.find(b"\n", at, stop)
        cr = source.find(b"\r", at, eol if eol >= 0 else stop)
        if cr >= 0:
            eol = cr
            self._after_cr = True
        if eol < 0:
            if self._line is None:
                self._line = []
            self._line.append(source[at:stop])
            self._hold(stop - at)
            return stop
        line = source[at:eol]
        if self._line is not None:
            self._line.append(line)
            line = b"".join(self._line)
            # The part just added has not been counted.
            self.held_bytes -= len(line) - (eol - at) + _PART_BYTES * (len(self._line) - 1)
            self._line = None
        if self._is_first_line and not events:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
        if line:
            self._handle_field(line)
        else:
            if self._data is not None and self._type not in _KEEP_ALIVE_TYPES:
                events.append((b"\n".join(self._data), eol + 1, self._type == _ERROR))
            self._data = None
            self._type = b""
            self.held_bytes = 0
        return eol + 1

    def _hold(self, size: int) -> None:
        self.held_bytes += size + _PART_BYTES
        if self.held_bytes > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event of over {MAX_EVENT_BYTES // 2**20} MiB")

    def _handle_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"event":
            decides = value == _ERROR or value in _KEEP_ALIVE_TYPES
            self._type = value if decides else b""
            return
        if name != b"data":
            # llama.cpp has sent an error text as a field of this name, Dynamo as a comment of an
            # event of this type. Both may send [DONE] after it.
            if name == b"error":
                self._type = _ERROR
            elif name or self._type != _ERROR:
                return
        if self._data is None:
            self._data = []
        self._data.append(value)
        self._hold(len(value))
