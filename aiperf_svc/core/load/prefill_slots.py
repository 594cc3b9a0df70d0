"""Slots for requests that wait for their first token.

A request takes a slot when it is sent and gives it back at its first token, or at its end if it
never has one. So no more requests than slots are in a server's prefill at a time, however many are
in its decoding. Over a ramp the slots open one after the other.
"""

from collections import deque
from collections.abc import Hashable, Iterable


class PrefillSlots:
    """The slots of one worker in one phase. Pure: times are given."""

    def __init__(self, opens_ns: Iterable[int] | None) -> None:
        """`opens_ns` are the times at which slots open, ascending; None: there is no limit."""
        self._opens_ns = deque(opens_ns or ())
        self._has_limit = opens_ns is not None
        self._open = 0
        self._held: set[Hashable] = set()

    @property
    def free(self) -> int | None:
        """Number of free slots; None without a limit."""
        return self._open - len(self._held) if self._has_limit else None

    @property
    def has_free(self) -> bool:
        """Whether a request may be sent."""
        return not self._has_limit or len(self._held) < self._open

    @property
    def is_ramping(self) -> bool:
        """Whether some slots are still to open."""
        return bool(self._opens_ns)

    def open(self, now_ns: int) -> None:
        """Open the slots whose time has come."""
        while self._opens_ns and self._opens_ns[0] <= now_ns:
            self._opens_ns.popleft()
            self._open += 1

    def take(self, request: Hashable) -> None:
        """Give a slot to a request that is sent. There must be a free one."""
        assert self.has_free, "a request is sent only if a slot is free"
        self._held.add(request)

    def holds(self, request: Hashable) -> bool:
        """Return whether a request holds a slot."""
        return request in self._held

    def give_back(self, request: Hashable) -> bool:
        """Take back the slot of a request that had its first token, or has ended. Returns whether
        it still held one."""
        if request not in self._held:
            return False
        self._held.remove(request)
        return True
