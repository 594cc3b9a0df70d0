"""Detects the first token of responses while they arrive.

Only a load with a limit on requests in prefill needs this immediately; all others use the records.
The definition is the same: a content, reasoning or tool-call delta.
"""

from typing import Any

from aiperf_svc.core.responses.events import ResponseEvents
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.core.responses.response_format import ResponseFormat


class FirstTokens:
    """The responses that have begun but have no token yet."""

    def __init__(self, format: ResponseFormat) -> None:
        self._format = format
        self._begun: dict[Any, tuple[ResponseEvents | None, int]] = {}
        """Parser of the events (None for a response without any), and the bytes it has received."""

    def has_come(self, request: Any, raw: bytearray, *, body_offset: int, framing: int) -> bool:
        """Return whether the response to `request` has its first token. `raw` are all bytes so far,
        with headers up to `body_offset`. Must not be called again once it is True."""
        events, taken = self._begun.get(request) or (self._begin(raw, body_offset, framing))
        if events is not None:
            data = bytes(memoryview(raw)[taken:])
            try:
                if _has_token(events, data):
                    self.forget(request)
                    return True
            except Exception:
                events = None  # An error, which its record will report.
        self._begun[request] = events, len(raw)
        return False

    def forget(self, request: Any) -> None:
        self._begun.pop(request, None)

    def _begin(
        self, raw: bytearray, body_offset: int, framing: int
    ) -> tuple[ResponseEvents | None, int]:
        try:
            is_stream = self._format.is_stream(bytes(raw[:body_offset]))
        except ProtocolViolation:
            is_stream = False
        return ResponseEvents(self._format.memo, framing) if is_stream else None, body_offset


def _has_token(events: ResponseEvents, data: bytes) -> bool:
    at = 0
    while at < len(data) and events.failure is None:
        found, at = events.feed(data, at, len(data))
        if any(delta.has_output for delta, _ in found):
            return True
    return False
