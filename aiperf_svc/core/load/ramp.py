"""Users and slots that begin one after another over a ramp."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

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
