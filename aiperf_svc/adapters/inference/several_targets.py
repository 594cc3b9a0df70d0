"""Sends requests to several targets through the interface of one client, with a client for each
target.

The upper bits of a request's number contain its target. All turns of a conversation go to one
target. A worker with one target uses its client directly.
"""

import select
from collections.abc import Callable, Sequence

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.connection import Connection
from aiperf_svc.adapters.inference.in_flight import OnEnd
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.config.endpoint import UrlStrategy
from aiperf_svc.core.load.target_addresses import add_up
from aiperf_svc.domain.request_ids import TARGET_SHIFT
from aiperf_svc.protocol.messages.reports import AddressUse


class SeveralTargets:
    """Sends each request to one of `targets`. Its methods are those of `InferenceClient`."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        shift: int,
        strategy: UrlStrategy = "round_robin",
        on_end: OnEnd,
        on_timer: Callable[[int], None],
        on_batch: Callable[[bytes, bytes, bytes, int], None],
        poll_every_ns: int,
        on_part: Callable[[Request], None] | None = None,
    ) -> None:
        """The target of a request is its index plus `shift`, or with `per_user` the number of its
        entry plus `shift`. With `least_in_flight`, this target breaks ties."""
        records = RawRecords(on_batch)
        self._is_per_user = strategy == "per_user"
        self._is_least_in_flight = strategy == "least_in_flight"
        self.parts = [
            InferenceClient(
                target,
                on_end=on_end,
                on_timer=on_timer,
                on_batch=on_batch,
                poll_every_ns=poll_every_ns,
                on_part=on_part,
                records=records,
                first_id=number << TARGET_SHIFT,
            )
            for number, target in enumerate(targets)
        ]
        self._first, self._count, self._shift = self.parts[0], len(targets), shift
        self._heads = [target.head for target in targets]
        self._head_bytes = len(self._heads[0])
        """Requests are prepared for the first target."""
        self._epoll = select.epoll()
        for part in self.parts:
            self._epoll.register(part.fd, select.EPOLLIN)

    @property
    def fd(self) -> int:
        return self._epoll.fileno()

    def address_uses(self) -> tuple[AddressUse, ...]:
        """Return how each address has been used so far. A shared address counts once."""
        return add_up(use for part in self.parts for use in part.address_uses())

    @property
    def last_seq(self) -> int:
        return self._first.last_seq

    @property
    def in_flight(self) -> int:
        return sum(part.in_flight for part in self.parts)

    @property
    def requests_sent(self) -> int:
        return sum(part.requests_sent for part in self.parts)

    @property
    def retries(self) -> int:
        return sum(part.retries for part in self.parts)

    @property
    def unasked(self) -> int:
        return sum(part.unasked for part in self.parts)

    @property
    def held_back_ns(self) -> int:
        return self._first.held_back_ns

    @property
    def clock_steps_ns(self) -> int:
        return self._first.clock_steps_ns

    @property
    def ended_near_steps(self) -> int:
        """Return the number of requests that ended near a step of the clock."""
        return self._first.ended_near_steps

    def send(self, request: Request) -> Connection | None:
        """Write a request to its target. Returns the connection, as `InferenceClient.send` does."""
        chosen_by = request.entry if self._is_per_user else request.index
        number = (chosen_by + self._shift) % self._count
        if self._is_least_in_flight:
            number = self._least_in_flight(request, number)
        if number:
            request.payload = self._heads[number] + request.payload[self._head_bytes :]
            request.bytes_out = len(request.payload)
        return self.parts[number].send(request)

    def connection_of(self, request: Request) -> Connection | None:
        found = (part.connection_of(request) for part in self.parts)
        return next((carrier for carrier in found if carrier is not None), None)

    def abandon(self, carrier: Connection, request: Request) -> None:
        for part in self.parts:
            if part.has(carrier):
                part.abandon(carrier, request)

    def _least_in_flight(self, request: Request, in_turn: int) -> int:
        """Return the target with the fewest requests in flight; the next one in turn breaks ties. A
        target that is down has no requests in flight and would get all of them, so it gets only its
        turns."""
        session = request.session
        if session is None:
            return self._choose(in_turn)
        if session.target < 0:
            session.target = self._choose(in_turn)
        number: int = session.target
        return number

    def _choose(self, in_turn: int) -> int:
        parts, count = self.parts, self._count
        if not parts[in_turn].addresses.has_up:
            return in_turn
        order = [(in_turn + step) % count for step in range(count)]
        return min(
            (number for number in order if parts[number].addresses.has_up),
            key=lambda number: parts[number].in_flight,
        )

    def preconnect(self, count: int) -> bool:
        """Open connections in advance until there are `count`, the same number for each target."""
        each = -(-count // self._count)
        made = [part.preconnect(each) for part in self.parts]
        return all(made)

    def poll_often(self, is_on: bool) -> None:
        for part in self.parts:
            part.poll_often(is_on)

    def wake_at(self, wall_ns: int | None) -> None:
        self._first.wake_at(wall_ns)

    def cancel_in_flight(self, message: str) -> None:
        for part in self.parts:
            part.cancel_in_flight(message)

    def hold_back(self) -> None:
        for part in self.parts:
            part.hold_back()

    def resume(self) -> None:
        for part in self.parts:
            part.resume()

    def revoke_unwritten(self) -> list[Request]:
        return [request for part in self.parts for request in part.revoke_unwritten()]

    def close(self) -> None:
        self._epoll.close()
        for part in self.parts:
            part.close()

    def run_ready(self) -> None:
        for part in self.parts:
            part.run_ready()

    def housekeeping(self) -> None:
        for part in self.parts:
            part.housekeeping()

    def expire(self) -> None:
        for part in self.parts:
            part.expire()

    def flush(self) -> None:
        self._first.flush()
