"""Users and slots that begin one by one over a ramp.

`PrefillSlots` are for requests that wait for their first token. A request takes a slot when it is
sent and releases it at its first token, or at its end if it has none. So the number of requests in
a server's prefill never exceeds the number of slots, however many are decoding. Over a ramp the
slots open one by one.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Final


class PrefillSlots:
    """The slots of one worker in one phase. Pure: times are passed in."""

    def __init__(self, opens_ns: Iterable[int] | None) -> None:
        """`opens_ns` are the times at which slots open, ascending; None: no limit."""
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
        """Whether some slots are not open yet."""
        return bool(self._opens_ns)

    def open(self, now_ns: int) -> None:
        """Open the slots that are due."""
        while self._opens_ns and self._opens_ns[0] <= now_ns:
            self._opens_ns.popleft()
            self._open += 1

    def take(self, request: Hashable) -> None:
        """Assign a slot to a request that is sent. A slot must be free."""
        assert self.has_free, "a request is sent only if a slot is free"
        self._held.add(request)

    def holds(self, request: Hashable) -> bool:
        return request in self._held

    def give_back(self, request: Hashable) -> bool:
        """Release the slot of a request that got its first token or has ended. Returns whether it
        still had one."""
        if request not in self._held:
            return False
        self._held.remove(request)
        return True


CONNECT_AHEAD_NS: Final = 2_000_000_000
"""Time from a user's connection to its first request. Connecting all users of a ramp at once would
leave no CPU time for the first ones."""


def opening_times(
    *, count: int, rank: int, workers: int, start_ns: int, ramp_ns: int
) -> Iterator[int]:
    """Return when each user or slot of a worker begins, given `count` in total that are dealt to
    the workers by rank."""
    return (start_ns + ramp_ns * place // count for place in range(rank, count, workers))


class ConnectionsAhead:
    """Computes how many connections are needed by the users that begin soon."""

    def __init__(self, openings: Iterable[int] = ()) -> None:
        """`openings` are the times at which users begin, in order."""
        self._unconnected = deque(openings)
        self._users = len(self._unconnected)

    def wanted(self, now_ns: int) -> int | None:
        """Return the number of connections needed now; None when nothing remains to be
        connected."""
        unconnected = self._unconnected
        if not unconnected:
            return None
        while unconnected and unconnected[0] <= now_ns + CONNECT_AHEAD_NS:
            unconnected.popleft()
        return self._users - len(unconnected)

    def stop(self) -> None:
        """Open no further connections."""
        self._unconnected.clear()
