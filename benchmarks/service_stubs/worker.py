"""A worker stub: heartbeats, credits, blocks, counts."""

from time import monotonic, monotonic_ns, time_ns
from typing import Any

import zmq

from aiperf_svc.adapters.messaging.bus import encode
from aiperf_svc.core.control import control_intervals
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.credits import (
    ClockProbed,
    ClockReply,
    CreditsGranted,
    CreditsReturned,
    PhaseOpened,
    PhaseStopped,
    WorkerAttached,
)
from aiperf_svc.protocol.messages.dataset import DatasetBlock, DatasetBlockRequested
from aiperf_svc.protocol.messages.reports import WorkerCounts
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.context import RunContext
from benchmarks.service_stubs.stub import RESPONSE_S, PlainBus, Stub


class WorkerStub(Stub):
    """A fluid model of a closed-loop worker: its users end `1 / RESPONSE_S` requests per second."""

    service = Service.WORKER

    def __init__(self, context: RunContext, bus: PlainBus, name: str) -> None:
        super().__init__(context, bus, name)
        identity = f"{name}.{context.epoch:x}".encode()
        self.credits = bus.connect(zmq.DEALER, Port.CREDIT_DROP, identity=identity)
        self.returns = bus.connect(zmq.PUSH, Port.CREDIT_RETURN)
        self.dataset = bus.connect(zmq.REQ, Port.DATASET_FRONT)
        self.blocks_left = -1
        self.opened: PhaseOpened | None = None
        self.users = self.granted = self.completed = self.revoked = self.seq = 0
        self.carry, self.last_at = 0.0, 0.0
        self.starved_user_s = self.user_s = self.waited_s = self.longest_wait_s = 0.0
        self.is_stopped = False
        self.reported: WorkerCounts | None = None
        self.return_at = self.probe_at = 0.0
        self.probes = 0
        self.round_trips_ns: list[int] = []
        self.sent: list[tuple[int, float]] = []
        """Unacknowledged batches as (last sequence number, send time)."""
        self.acknowledge_s: list[float] = []

    def attach(self) -> None:
        self.credits.send(encode(WorkerAttached(*self.header)))

    def act(self) -> None:
        if self.state is RunState.CONFIGURING and self.blocks_left != 0:
            if self.blocks_left < 0:
                self.request_block(0)
        else:
            self.reached = self.state

    def request_block(self, block: int) -> None:
        self.dataset.send(encode(DatasetBlockRequested(*self.header, block=block)))

    def on_block(self, block: DatasetBlock) -> None:
        self.blocks_left = block.block_count - block.block - 1
        if self.blocks_left:
            self.request_block(block.block + 1)
        else:
            self.reached, self.beat_at = self.state, 0.0

    def on_credit(self, message: Any) -> None:
        match message:
            case ClockReply():
                self.round_trips_ns.append(time_ns() - message.sent_wall_ns)
            case PhaseOpened():
                self.opened = message
                mine = range(message.worker_rank, message.concurrency, message.worker_count)
                self.users = len(mine)
                self.granted = self.completed = self.revoked = 0
                self.last_at, self.is_stopped = monotonic(), False
            case CreditsGranted():
                self.granted += message.count
            case PhaseStopped():
                self.is_stopped = True

    def acknowledged(self, highest: int, now: float) -> None:
        while self.sent and self.sent[0][0] <= highest:
            self.acknowledge_s.append(now - self.sent.pop(0)[1])

    def work(self, now: float) -> None:
        """End the requests that have completed since the last tick."""
        if now >= self.probe_at:
            self.probes += 1
            usual_s = control_intervals.probe_interval_s(self.context.topology.workers)
            self.probe_at = now + (0.02 if self.probes < 8 else usual_s)
            self.credits.send(encode(ClockProbed(*self.header, sent_wall_ns=time_ns())))
        opened = self.opened
        if opened is None or time_ns() < opened.start_wall_ns:
            self.last_at = now
            return
        elapsed_s, self.last_at = now - self.last_at, now
        is_over = self.is_stopped or 0 < opened.stop_wall_ns <= time_ns()
        ended = self.completed + self.revoked
        if is_over:
            # Requests in flight end at once; the rest never started.
            in_flight = min(self.users, self.granted - ended)
            self.completed += in_flight
            self.revoked += self.granted - ended - in_flight
            self.users = 0
        else:
            in_flight = min(self.users, self.granted - ended)
            self._note_starved(self.users - in_flight, elapsed_s)
            self.carry += in_flight * elapsed_s / RESPONSE_S
            ends = min(int(self.carry), in_flight)
            self.carry -= ends
            self.completed += ends
        interval_s = control_intervals.return_interval_s(opened.worker_count)
        starved = self.users > self.granted - self.completed - self.revoked
        if now >= self.return_at or starved:
            self.return_at = now + interval_s
            counts = self._now()
            if counts != self.reported:
                self.reported = counts
                is_idle = self.granted == self.completed + self.revoked
                returned = CreditsReturned(*self.header, counts, is_idle, monotonic_ns())
                self.returns.send(encode(returned))

    def _note_starved(self, users: int, elapsed_s: float) -> None:
        self.user_s += self.users * elapsed_s
        self.starved_user_s += users * elapsed_s
        self.waited_s = self.waited_s + elapsed_s if users else 0.0
        self.longest_wait_s = max(self.longest_wait_s, self.waited_s)

    def _now(self) -> WorkerCounts:
        return WorkerCounts(
            phase=self.opened.phase if self.opened else Phase.PROFILING,
            granted=self.granted,
            completed=self.completed,
            revoked=self.revoked,
            requests_sent=self.completed,
            in_flight=min(self.users, self.granted - self.completed - self.revoked),
            last_seq=self.completed,
        )

    def counts(self) -> tuple[WorkerCounts, ...]:
        return () if self.opened is None else (self._now(),)
