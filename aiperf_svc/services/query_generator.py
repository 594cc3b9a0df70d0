"""Sends requests in queries: several together, and the next ones when all of these have ended.

It differs from other closed loops in one thing: users wait for each other. Only workers of such a
load have this class, so that the others pay nothing for it.
"""

from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.services.load_generator import LoadGenerator


class QueryGenerator(LoadGenerator):
    """A closed loop whose users all begin at once. Query `q` has the credits from `q` times their
    number on. Its requests are due when the last response of the query before has ended."""

    def on_end(self, request: Request, outcome: int) -> None:
        """Take in the end of a request, and begin the next query if it was the last one."""
        self._end_into_queue(request, outcome)

    def _run_closed_loop(self, now: int) -> None:
        openings, users, size = self._openings, self._users, self._limit
        while openings and openings[0] <= now:
            users.append(openings.popleft())
        if len(users) < size:
            return
        if len(self._held) < size or not self._held.unpack():
            self._on_starved()
            return
        first = self._credits[0]
        entries = [self._find(first + place) for place in range(size)]
        if any(entry is None for entry in entries):
            return
        due = max(users)
        users.clear()
        for entry in entries:
            assert entry is not None
            self._held.unpack()
            self._begin(entry, self._credits.popleft(), due, 0)
