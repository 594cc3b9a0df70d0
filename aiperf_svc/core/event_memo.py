"""Answers' events repeat: what differs from request to request is the id at their beginning, what
follows is one of some thousand tokens. So the decoding of that rest is remembered.

Why that is sound: JSON is decoded from left to right. An event's beginning, up to its first `[`,
that is JSON without any meaning once `[]}` closes it, leaves the decoder in one and the same state,
whatever the id in it: within the list of choices, having seen nothing else. From there on the rest
alone decides what the event says. An event with any other beginning is decoded whole, every time.
"""

from collections.abc import Callable
from typing import Final

from aiperf_svc.core.endpoints.base import Delta, MalformedAnswer

CUT: Final = b"["
_CLOSE: Final = b"[]}"
_NO_MEANING: Final = Delta()
MAX_REST: Final = 256
"""Longer ones, with log probabilities for instance, hardly repeat."""
MAX_KNOWN: Final = 8_192
"""About 4 MB. The frequent tokens, which are most of any text, are soon known again."""


class EventMemo:
    """An endpoint's `parse_event` with a memory. Its deltas are shared: not to be changed."""

    def __init__(self, parse_event: Callable[[bytes], Delta]) -> None:
        self._parse_event = parse_event
        self.beginning = b""
        """The latest that was found to be without meaning; a stream has but one."""
        self.known: dict[bytes, Delta] = {}
        """What follows a meaningless beginning and `CUT`, without line ends, to what it says."""
        self.content: dict[bytes, str] = {}
        """Of those the ones that add content and nothing else, as nearly all events do."""
        self.reasoning: dict[bytes, str] = {}
        """The same for reasoning."""

    def parse(self, data: bytes) -> Delta:
        """As `parse_event`. Raises MalformedAnswer."""
        beginning, _, rest = data.partition(CUT)
        if not self.is_meaningless(beginning):
            return self._parse_event(data)
        delta = self.known.get(rest)
        return self._learn(data, rest) if delta is None else delta

    def _learn(self, data: bytes, rest: bytes) -> Delta:
        delta = self._parse_event(data)
        if len(rest) <= MAX_REST and b"\n" not in rest:
            if len(self.known) >= MAX_KNOWN:
                for memory in (self.known, self.content, self.reasoning):
                    memory.clear()
            self.known[rest] = delta
            if delta.content and delta == Delta(content=delta.content):
                self.content[rest] = delta.content
            elif delta.reasoning and delta == Delta(reasoning=delta.reasoning):
                self.reasoning[rest] = delta.reasoning
        return delta

    def is_meaningless(self, beginning: bytes) -> bool:
        """Whether an event's beginning may be left out of account."""
        if beginning == self.beginning:
            return True
        if b"\n" in beginning:
            return False
        try:
            delta = self._parse_event(beginning + _CLOSE)
        except MalformedAnswer:
            return False
        if delta != _NO_MEANING:
            return False
        self.beginning = beginning
        return True
