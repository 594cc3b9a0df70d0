"""The format of a run's responses: their common properties, and how to parse each one."""

from typing import Final

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints.base import MAX_CHOICES, Endpoint, choices_asked_for
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.core.responses.event_cache import EventMemo
from aiperf_svc.core.responses.http1 import Head, parse_head

_KNOWN_HEADS: Final = 512

NO_HEAD, STREAM, BODY, ERROR_BODY = range(4)
"""Modes in which a response is parsed."""


class ResponseFormat:
    """Format of a good response, common to all responses of a run."""

    def __init__(
        self, endpoint: Endpoint, *, is_streaming: bool, keeps_text: bool, choices: int = 1
    ) -> None:
        """Set up the format. Each request asks for `choices` choices."""
        self.memo = EventMemo(endpoint.parse_event)
        self.parse_body = endpoint.parse_body
        self.content_types = endpoint.content_types(streaming=is_streaming)
        self.has_end_mark = endpoint.has_end_mark
        self.may_repeat = endpoint.may_repeat
        self.keeps_text = keeps_text
        self.last_choice = min(max(choices, 1), MAX_CHOICES) - 1
        self._is_streaming = is_streaming
        self._known: dict[bytes, tuple[Head, int]] = {}

    @classmethod
    def of(cls, options: config.Endpoint, *, keeps_text: bool = False) -> "ResponseFormat":
        """Return the format of the responses of a config's endpoint."""
        return cls(
            endpoint_of(options),
            is_streaming=options.streaming,
            keeps_text=keeps_text,
            choices=choices_asked_for(options),
        )

    def take_heads(self, raw: bytes) -> tuple[Head, int]:
        """Return the last of the heads in `raw` (interim heads precede it), and the mode for
        parsing the body. Raises ProtocolViolation.

        Servers repeat their heads exactly within a second, so parsed heads are cached.
        """
        known = self._known.get(raw)
        if known is None:
            if len(self._known) >= _KNOWN_HEADS:
                self._known.clear()
            end_of_interim = raw.rfind(b"\r\n\r\n", 0, -4)
            head = parse_head(raw[end_of_interim + 4 :] if end_of_interim >= 0 else raw)
            known = self._known[raw] = head, self._mode(head)
        return known

    def is_stream(self, raw: bytes) -> bool:
        """Return whether the body after these heads is a stream of events. Raises
        ProtocolViolation."""
        return self.take_heads(raw)[1] == STREAM

    def _mode(self, head: Head) -> int:
        is_other_type = head.content_type and head.content_type not in self.content_types
        if head.status >= 300 or is_other_type or head.content_coding:
            return ERROR_BODY
        return STREAM if self._is_streaming else BODY
