"""Abandons requests, for loads in which some clients leave before their response has ended.

In such a load, the load generator sends through this object. A chosen request is abandoned at a
fixed delay after it was fully written. That time is unknown when the request is handed to the
client, because it may wait for a connection. So a heap entry has the earliest possible time, at
which the request is checked again. A request that is not yet written at a check is abandoned no
earlier than one delay later, so one check per delay is exact.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from time import time_ns
from typing import Final

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.connection import Connection
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.several_targets import SeveralTargets
from aiperf_svc.core.load.abandonment import Abandonment
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.records import Flag

MIN_CHECK_NS: Final = 1_000_000
"""Minimum interval between checks of a request that waits for a connection."""
PRUNED_AT: Final = 1_024
"""Minimum number of entries before those of ended requests are removed."""

_ABANDONS, _PROFILING = int(Flag.ABANDONS), int(Phase.PROFILING)


class Abandonments:
    """Sends requests, and abandons the chosen ones."""

    def __init__(
        self,
        choice: Abandonment,
        client: InferenceClient | SeveralTargets,
        on_sooner: Callable[[], None],
    ) -> None:
        """`on_sooner` is called when the time of the next check becomes earlier."""
        self._choice = choice
        self._client = client
        self._on_sooner = on_sooner
        self._heap: list[tuple[int, int, Request, Connection | None]] = []
        self._order = count()
        self._prune_at = PRUNED_AT

    @property
    def next_wall_ns(self) -> int | None:
        """Time of the next check; None if no request is to be abandoned."""
        return self._heap[0][0] if self._heap else None

    def send(self, request: Request) -> None:
        """Send a request, and abandon it after the delay if it is chosen."""
        if request.phase != _PROFILING or not self._choice.is_chosen(request.index, request.turn):
            self._client.send(request)
            return
        request.flags |= _ABANDONS
        carrier = self._client.send(request)
        if not request.end_wall_ns:
            self._schedule_check(time_ns() + self._choice.delay_ns, request, carrier)
            if self._heap[0][2] is request:
                self._on_sooner()

    def run(self, now: int) -> None:
        """Abandon the requests that are due. They end in the client's `run_ready`, after it has
        read the data that has arrived by now."""
        delay_ns = self._choice.delay_ns
        while self._heap and self._heap[0][0] <= now:
            _, _, request, carrier = heappop(self._heap)
            if request.end_wall_ns:
                continue
            if carrier is None or carrier.request is not request:
                # It was retried, or moved to another address.
                carrier = self._client.connection_of(request)
                if carrier is None:
                    continue  # revoked by a stop
            if not request.was_written or carrier.unsent is not None:
                self._schedule_check(now + max(delay_ns, MIN_CHECK_NS), request, carrier)
            elif request.sent_wall_ns + delay_ns > now:
                self._schedule_check(request.sent_wall_ns + delay_ns, request, carrier)
            else:
                self._client.abandon(carrier, request)

    def _schedule_check(self, at_ns: int, request: Request, carrier: Connection | None) -> None:
        if len(self._heap) >= self._prune_at:
            self._heap = [entry for entry in self._heap if not entry[2].end_wall_ns]
            heapify(self._heap)
            self._prune_at = max(PRUNED_AT, 2 * len(self._heap))
        heappush(self._heap, (at_ns, next(self._order), request, carrier))
