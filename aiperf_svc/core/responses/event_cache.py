"""Responses' events repeat: what differs from request to request is the id at their beginning, what
follows is one of some thousand tokens. So the decoding of that rest is remembered.

Why that is sound: JSON is decoded from left to right. An event's beginning, up to its first `[`,
that is JSON without any meaning once `[]}` closes it, leaves the decoder in one and the same state,
whatever the id in it: within the list of choices, having seen nothing else. From there on the rest
alone decides what the event says. An event with any other beginning is decoded whole, every time.
"""

from collections.abc import Callable
from typing import Final

from aiperf_svc.core.endpoints.base import Delta, MalformedResponse

CUT: Final = b"["
_CLOSE: Final = b"[]}"
_NO_MEANING: Final = Delta()
MAX_REST: Final = 256
"""Longer ones, with log probabilities for instance, hardly repeat."""
MAX_KNOWN: Final = 8_192
"""About 4 MB. The frequent tokens, which are most of any text, are soon known again."""
MAX_SEVERAL: Final = 16
"""Responses with more choices are read event by event: each number of choices takes memory."""


class EventMemo:
    """An endpoint's `parse_event` with a memory. Its deltas are shared: not to be changed."""

    def __init__(self, parse_event: Callable[[bytes], Delta]) -> None:
        self._parse_event = parse_event
        self.beginning = b""
        """The latest that was found to be without meaning; a stream has but one."""
        self.known: dict[bytes, Delta] = {}
        """What follows a meaningless beginning and `CUT`, without line ends, to what it says."""
        self.content: dict[bytes, str] = {}
        """Of those the ones that add content to the first choice and nothing else, as nearly all
        events do."""
        self.reasoning: dict[bytes, str] = {}
        """The same for reasoning."""
        self._several: dict[int, tuple[dict[bytes, str], dict[bytes, str]]] = {}
        """Content and reasoning of all choices up to some index."""

    def parse(self, data: bytes) -> Delta:
        """As `parse_event`. Raises MalformedResponse."""
        beginning, _, rest = data.partition(CUT)
        if not self.is_meaningless(beginning):
            return self._parse_event(data)
        delta = self.known.get(rest)
        return self._learn(data, rest) if delta is None else delta

    def plain(self, last_choice: int) -> tuple[dict[bytes, str], dict[bytes, str]]:
        """What is known that adds content, and reasoning, and nothing else, to one of the choices
        up to that index."""
        if not last_choice:
            return self.content, self.reasoning
        found = self._several.get(last_choice)
        if found is None:
            found = {}, {}
            if last_choice < MAX_SEVERAL:
                self._several[last_choice] = found
                for rest, delta in self.known.items():
                    _note(found, rest, delta, last_choice)
        return found

    def _learn(self, data: bytes, rest: bytes) -> Delta:
        delta = self._parse_event(data)
        if len(rest) <= MAX_REST and b"\n" not in rest:
            if len(self.known) >= MAX_KNOWN:
                for memory in (self.known, self.content, self.reasoning):
                    memory.clear()
                for pair in self._several.values():
                    pair[0].clear()
                    pair[1].clear()
            self.known[rest] = delta
            _note((self.content, self.reasoning), rest, delta, 0)
            for last_choice, pair in self._several.items():
                _note(pair, rest, delta, last_choice)
        return delta

    def is_meaningless(self, beginning: bytes) -> bool:
        """Whether an event's beginning may be left out of account."""
        if beginning == self.beginning:
            return True
        if b"\n" in beginning:
            return False
        try:
            delta = self._parse_event(beginning + _CLOSE)
        except MalformedResponse:
            return False
        if delta != _NO_MEANING:
            return False
        self.beginning = beginning
        return True


def _note(
    plain: tuple[dict[bytes, str], dict[bytes, str]], rest: bytes, delta: Delta, last_choice: int
) -> None:
    """Add what `delta` says to the content or the reasoning, if it says no more than that."""
    choice = delta.choice
    if choice > last_choice:
        return
    if delta.content and delta == Delta(content=delta.content, choice=choice):
        plain[0][rest] = delta.content
    elif delta.reasoning and delta == Delta(reasoning=delta.reasoning, choice=choice):
        plain[1][rest] = delta.reasoning
