"""Users and slots that begin one after another over a ramp.

`PrefillSlots` are for requests that wait for their first token. A request takes a slot when it is
sent and gives it back at its first token, or at its end if it never has one. So no more requests
than slots are in a server's prefill at a time, however many are in its decoding. Over a ramp the
slots open one after the other.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Final


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
        return request in self._held

    def give_back(self, request: Hashable) -> bool:
        """Take back the slot of a request that had its first token, or has ended. Returns whether
        it still held one."""
        if request not in self._held:
            return False
        self._held.remove(request)
        return True


CONNECT_AHEAD_NS: Final = 2_000_000_000
"""Time from the connection of a user to its first request. Connecting all users of a ramp at once
would leave no CPU time for the first ones."""


def opening_times(
    *, count: int, rank: int, workers: int, start_ns: int, ramp_ns: int
) -> Iterator[int]:
    """Return when each user or slot of a worker begins, of `count` in all that are dealt to the
    workers by rank."""
    return (start_ns + ramp_ns * place // count for place in range(rank, count, workers))


class ConnectionsAhead:
    """Says how many connections the users need that begin soon."""

    def __init__(self, openings: Iterable[int] = ()) -> None:
        """`openings` are the times at which users begin, in order."""
        self._unconnected = deque(openings)
        self._users = len(self._unconnected)

    def wanted(self, now_ns: int) -> int | None:
        """Return the number of connections that there should be now; None when there is nothing
        more to connect."""
        unconnected = self._unconnected
        if not unconnected:
            return None
        while unconnected and unconnected[0] <= now_ns + CONNECT_AHEAD_NS:
            unconnected.popleft()
        return self._users - len(unconnected)

    def stop(self) -> None:
        """Connect for no other user."""
        self._unconnected.clear()
