"""Abandons requests: some clients leave before their response has ended.

The load generator sends through this object where the load has such clients. A request that was
chosen leaves a fixed time after it was sent whole. That time is not known when it is handed to the
client, since it may wait for a connection, so the time of a heap's entry is the earliest at which
the request may have to leave; then it is looked at again. A request that is not written at one look
leaves no earlier than the delay after it, so a look once each delay is enough to be exact.
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

LEAST_LOOK_NS: Final = 1_000_000
"""Shortest time between two looks at a request that waits for a connection."""
PRUNED_AT: Final = 1_024
"""Smallest number of entries at which those of ended requests are removed."""

_ABANDONS, _PROFILING = int(Flag.ABANDONS), int(Phase.PROFILING)


class Abandonments:
    """Sends requests, and abandons those that were chosen for it."""

    def __init__(
        self,
        choice: Abandonment,
        client: InferenceClient | SeveralTargets,
        on_sooner: Callable[[], None],
    ) -> None:
        """`on_sooner` is called when the time of the next look has become earlier."""
        self._choice = choice
        self._client = client
        self._on_sooner = on_sooner
        self._heap: list[tuple[int, int, Request, Connection | None]] = []
        self._order = count()
        self._prune_at = PRUNED_AT

    @property
    def next_wall_ns(self) -> int | None:
        """Time of the next look; None if no request is to be abandoned."""
        return self._heap[0][0] if self._heap else None

    def send(self, request: Request) -> None:
        """Send a request, and abandon it after the delay if it is chosen."""
        if request.phase != _PROFILING or not self._choice.is_chosen(request.index, request.turn):
            self._client.send(request)
            return
        request.flags |= _ABANDONS
        carrier = self._client.send(request)
        if not request.end_wall_ns:
            self._look(time_ns() + self._choice.delay_ns, request, carrier)
            if self._heap[0][2] is request:
                self._on_sooner()

    def run(self, now: int) -> None:
        """Abandon the requests whose time has come. They end after what has arrived by now is
        read, as part of the client's `run_ready`."""
        delay_ns = self._choice.delay_ns
        while self._heap and self._heap[0][0] <= now:
            _, _, request, carrier = heappop(self._heap)
            if request.end_wall_ns:
                continue
            if carrier is None or carrier.request is not request:
                # It was sent again, or to another address.
                carrier = self._client.connection_of(request)
                if carrier is None:
                    continue  # taken back by a stop
            if not request.was_written or carrier.unsent is not None:
                self._look(now + max(delay_ns, LEAST_LOOK_NS), request, carrier)
            elif request.sent_wall_ns + delay_ns > now:
                self._look(request.sent_wall_ns + delay_ns, request, carrier)
            else:
                self._client.abandon(carrier, request)

    def _look(self, at_ns: int, request: Request, carrier: Connection | None) -> None:
        if len(self._heap) >= self._prune_at:
            self._heap = [entry for entry in self._heap if not entry[2].end_wall_ns]
            heapify(self._heap)
            self._prune_at = max(PRUNED_AT, 2 * len(self._heap))
        heappush(self._heap, (at_ns, next(self._order), request, carrier))
