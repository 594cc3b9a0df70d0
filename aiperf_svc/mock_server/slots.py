"""The slots of a server whose capacity is known: so many responses are made at once, and further
requests wait in order of arrival.

A response holds its slot from its start until its last token. So a server of `c` slots and a mean
of `s` seconds a response serves at most `c / s` requests a second: it is the queue M/D/c under
Poisson arrivals and fixed delays, M/M/c with exponential ones.
"""

from aiperf_svc.mock_server.connections import Connection


class Slots:
    """Who holds a slot and who waits for one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._holders: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # in order of arrival

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._waiting)

    def take(self, connection: Connection) -> bool:
        """Takes a slot for the request of a connection; False if it has to wait for one."""
        if len(self._holders) < self._count:
            self._holders.add(connection)
            return True
        self._waiting[connection] = None
        return False

    def leave(self, connection: Connection) -> Connection | None:
        """Ends a connection's request, whether it held a slot, waited or needed none. Returns the
        connection that gets the slot."""
        if connection not in self._holders:
            self._waiting.pop(connection, None)
            return None
        self._holders.remove(connection)
        if not self._waiting:
            return None
        first = next(iter(self._waiting))
        del self._waiting[first]
        self._holders.add(first)
        return first
