"""Replaces all services except the records manager."""

import asyncio
from typing import Any

import zmq

from aiperf_svc.adapters.messaging.bus import DOWN, UP, Addresses, Bus, decode, encode
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.events import (
    Heartbeat,
    Member,
    RecordsAcknowledged,
    RosterPublished,
    RunStatePublished,
)
from aiperf_svc.protocol.messages.reports import PhaseReport, WorkerCounts
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.environment import LocalRun
from benchmarks.records_15m.feed import RATE_PER_S, START_WALL_NS, WORKERS, Feed


class FakeServices:
    """All services except the records manager."""

    def __init__(self, run: LocalRun, feed: Feed) -> None:
        self._run, self._feed = run, feed
        self._bus = Bus(Addresses(f"ipc://{run.private}"))
        self._down = self._bus.bind(zmq.PUB, Port.EVENTS_OUT)
        self._up = self._bus.bind(zmq.SUB, Port.EVENTS_IN)
        self._up.setsockopt(zmq.SUBSCRIBE, b"")
        self._number = 0
        self.reached = RunState.PENDING
        self.is_there = asyncio.Event()
        self.changed = asyncio.Event()
        self.acknowledged = 0

    async def listen(self) -> None:
        """Read the messages of the records manager until cancelled."""
        while True:
            _, data = await self._up.recv_multipart()
            message = decode(data)
            if isinstance(message, Heartbeat):
                assert not message.error, message.error
                self.reached = message.reached
                self.is_there.set()
            elif isinstance(message, RecordsAcknowledged):
                self.acknowledged = sum(message.highest.values())
            self.changed.set()

    async def wait_until_acknowledged(self, count: int) -> None:
        """Wait until the records manager has acknowledged this many records."""
        while self.acknowledged < count:
            self.changed.clear()
            await self.changed.wait()

    async def wait_until_reached(self, state: RunState) -> None:
        """Wait until the records manager has finished its part of that state."""
        while self.reached is not state:
            self.changed.clear()
            await self.changed.wait()

    async def send_batches(self) -> None:
        """Send all batches as fast as they are accepted."""
        out = self._bus.connect(zmq.PUSH, Port.RECORDS)
        for frame in self._feed.frames():
            await out.send(frame)

    async def publish_roster(self) -> None:
        """Publish the members of the run."""
        members = [
            Member(f"worker-{i}", Service.WORKER, 1, i, processor="record-processor-0")
            for i in range(WORKERS)
        ]
        await self._publish(
            DOWN,
            RosterPublished(
                *self._header("worker-manager"),
                number=1,
                frozen=True,
                complete=True,
                missing=(),
                members=tuple(members),
            ),
        )

    async def publish_accounts(self) -> None:
        """Publish the workers' counts, and the timing manager's grants."""
        end = START_WALL_NS + (self._feed.count // RATE_PER_S + 1) * 10**9
        report = PhaseReport(Phase.PROFILING, START_WALL_NS, end, granted=self._feed.count)
        await self._beat(Service.TIMING_MANAGER, "timing-manager", phases=(report,))
        for i, sent in enumerate(self._feed.sent):
            counts = WorkerCounts(
                Phase.PROFILING, granted=sent, completed=sent, requests_sent=sent, last_seq=sent
            )
            await self._beat(Service.WORKER, f"worker-{i}", counts=(counts,))

    async def publish_state(self, state: RunState) -> None:
        """Publish the state of the run."""
        self._number += 1
        message = RunStatePublished(
            *self._header("system-controller"), number=self._number, state=state
        )
        await self._publish(DOWN, message)

    async def close(self) -> None:
        """Close the sockets."""
        await self._bus.close()

    def _header(self, name: str) -> tuple[str, str, int]:
        return self._run.run_id, name, 1

    async def _beat(
        self,
        service: Service,
        name: str,
        *,
        phases: tuple[PhaseReport, ...] = (),
        counts: tuple[WorkerCounts, ...] = (),
    ) -> None:
        beat = Heartbeat(
            *self._header(name),
            service=service,
            seen_state=self._number,
            seen_roster=1,
            reached=RunState.DRAINING,
            counts=counts,
            phases=phases,
        )
        await self._publish(UP, beat)

    async def _publish(self, topic: bytes, message: Any) -> None:
        await self._down.send_multipart([topic, encode(message)])
