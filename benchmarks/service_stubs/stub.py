"""Base of worker and processor stubs."""

import zmq

from aiperf_svc.adapters.messaging.bus import DOWN, REPORT, Bus, encode, topic_of
from aiperf_svc.core.control.control_intervals import registering_interval_s
from aiperf_svc.protocol.messages.events import Heartbeat, Member, RunStatePublished
from aiperf_svc.protocol.messages.reports import ClockEstimate, Vitals, WorkerCounts
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import HEARTBEAT_S, REGISTERING_GROWTH
from aiperf_svc.services.context import RunContext

RESPONSE_S = 8.0
"""Duration of each simulated request: about 150 tokens at 50 ms."""


class PlainBus(Bus):
    """The product's sockets without an event loop."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context.addresses, curve=context.curve)
        self._context = zmq.Context()  # type: ignore[assignment]  # without an event loop
        self._context.max_sockets = 16_384


class Stub:
    """Base of worker and processor stubs."""

    service: Service

    def __init__(self, context: RunContext, bus: PlainBus, name: str) -> None:
        self.context, self.name = context, name
        self.header = (context.run_id, name, context.epoch)
        self.publisher = bus.connect(zmq.PUB, Port.REPORTS_IN)
        self.subscriber = bus.connect(zmq.SUB, Port.EVENTS_OUT)
        self.subscriber.setsockopt(zmq.SUBSCRIBE, DOWN)
        self.subscriber.setsockopt(zmq.SUBSCRIBE, topic_of(name))
        self.reached, self.state, self.state_number = RunState.PENDING, RunState.PENDING, 0
        self.roster_number = 0
        self.member: Member | None = None
        members = sum(context.topology.expected.values())
        self.beat_at, self.beat_interval_s = 0.0, registering_interval_s(members)
        self.address = ""

    def on_state(self, message: RunStatePublished) -> None:
        if message.number > self.state_number:
            self.state_number, self.state = message.number, message.state
            self.act()
            self.beat_at = 0.0

    def on_roster(self, number: int, member: Member | None, is_frozen: bool) -> None:
        self.roster_number, self.member = number, member
        if is_frozen:
            self.beat_at = 0.0

    def act(self) -> None:
        """Do the work of a state at once."""
        self.reached = self.state

    def beat(self, now: float) -> None:
        if now < self.beat_at:
            return
        if self.member is not None:
            self.beat_interval_s = HEARTBEAT_S
        self.beat_at = now + self.beat_interval_s
        self.beat_interval_s = min(HEARTBEAT_S, self.beat_interval_s * REGISTERING_GROWTH)
        beat = Heartbeat(
            *self.header,
            service=self.service,
            seen_state=self.state_number,
            seen_roster=self.roster_number,
            reached=self.reached,
            address=self.address,
            boot_id=self.context.boot_id,
            vitals=Vitals(0.5, 0, 1_000_000, 80_000_000, 520, 20_000),
            counts=self.counts(),
            clock=ClockEstimate(uncertainty_ns=20_000, same_host=True),
        )
        self.publisher.send_multipart([REPORT, encode(beat)])

    def counts(self) -> tuple[WorkerCounts, ...]:
        return ()
