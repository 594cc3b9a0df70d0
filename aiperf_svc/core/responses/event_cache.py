"""A cache of decoded events. Events of different responses differ in the id at their beginning. The
rest is one of some thousand tokens, so its decoding is cached.

This is correct because JSON is decoded from left to right. If an event's beginning, up to its first
`[`, is JSON without any content when closed by `[]}`, it always leaves the decoder in the same
state, whatever its id: inside the list of choices, with nothing else found. From there on, only the
rest determines the result. An event with any other beginning is decoded completely every
time.
"""

from collections.abc import Callable
from typing import Final

from aiperf_svc.core.endpoints.base import UNREADABLE, Delta

CUT: Final = b"["
_CLOSE: Final = b"[]}"
_NO_CONTENT: Final = Delta()
MAX_REST: Final = 256
"""Maximum length of a cached rest. Longer rests, such as log probabilities, rarely repeat."""
MAX_KNOWN: Final = 8_192
"""Maximum number of cached rests, about 4 MB. When it is reached, the cache is cleared; frequent
tokens soon refill it."""
MAX_SEVERAL: Final = 16
"""Maximum number of choices with separate caches. Responses with more are parsed event by event,
since each number of choices takes memory."""


class EventMemo:
    """Caches the results of an endpoint's `parse_event`. Its deltas are shared and must not be
    modified."""

    def __init__(self, parse_event: Callable[[bytes], Delta]) -> None:
        self._parse_event = parse_event
        self.beginning = b""
        """Latest beginning without content. A stream has only one."""
        self.known: dict[bytes, Delta] = {}
        """Deltas by the rest after a beginning without content and `CUT`, without line
        ends."""
        self.content: dict[bytes, str] = {}
        """Rests that only add content to the first choice, as in nearly all events."""
        self.reasoning: dict[bytes, str] = {}
        """Rests that only add reasoning to the first choice."""
        self._several: dict[int, tuple[dict[bytes, str], dict[bytes, str]]] = {}
        """Content and reasoning of all choices up to an index."""

    def parse(self, data: bytes) -> Delta:
        """Decode an event like `parse_event`. Raises UNREADABLE."""
        beginning, _, rest = data.partition(CUT)
        if not self.has_no_content(beginning):
            return self._parse_event(data)
        delta = self.known.get(rest)
        return self._cache_event(data, rest) if delta is None else delta

    def plain(self, last_choice: int) -> tuple[dict[bytes, str], dict[bytes, str]]:
        """Return the rests that only add content, and those that only add reasoning, to one of the
        choices up to `last_choice`."""
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

    def _cache_event(self, data: bytes, rest: bytes) -> Delta:
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

    def has_no_content(self, beginning: bytes) -> bool:
        """Return whether an event's beginning has no content."""
        if beginning == self.beginning:
            return True
        if b"\n" in beginning:
            return False
        try:
            delta = self._parse_event(beginning + _CLOSE)
        except UNREADABLE:
            return False
        if delta != _NO_CONTENT:
            return False
        self.beginning = beginning
        return True


def _note(
    plain: tuple[dict[bytes, str], dict[bytes, str]], rest: bytes, delta: Delta, last_choice: int
) -> None:
    """Add `delta` to the content or the reasoning, if it contains nothing else."""
    choice = delta.choice
    if choice > last_choice:
        return
    if delta.content and delta == Delta(content=delta.content, choice=choice):
        plain[0][rest] = delta.content
    elif delta.reasoning and delta == Delta(reasoning=delta.reasoning, choice=choice):
        plain[1][rest] = delta.reasoning
