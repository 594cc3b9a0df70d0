"""Runs all stubs of one process in one loop."""

import select
from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from typing import Any

import zmq

from aiperf_svc.adapters.messaging.bus import decode
from aiperf_svc.core.control.run_machine import ORDER
from aiperf_svc.protocol.messages.events import (
    RecordsAcknowledged,
    RosterPublished,
    RunStatePublished,
)
from aiperf_svc.services.context import read_context
from benchmarks.service_stubs.processor import ProcessorStub
from benchmarks.service_stubs.stub import PlainBus, Stub
from benchmarks.service_stubs.worker import WorkerStub

TICK_S = 0.05

Reader = tuple[Any, Callable[[bytes], None]]
"""A socket, and the function that handles its messages."""


class StubHost:
    """Runs all stubs of one process in one loop."""

    def __init__(self, workers: list[str], processors: list[str]) -> None:
        context = read_context()
        self._bus = PlainBus(context)
        self._epoll = select.epoll()
        self._readers: dict[int, Reader] = {}
        self.workers = [WorkerStub(context, self._bus, name) for name in workers]
        self.processors = [ProcessorStub(context, self._bus, name) for name in processors]
        self._known: dict[bytes, Any] = {}
        for stub in (*self.workers, *self.processors):
            self._watch(stub.subscriber, partial(self._on_event, stub))
        self._credits: list[Reader] = []
        for worker in self.workers:
            self._credits.append(self._watch(worker.credits, partial(self._on_credit, worker)))
            self._watch(worker.dataset, partial(self._on_block, worker))
            worker.attach()

    def _watch(self, sock: Any, handle: Callable[[bytes], None]) -> Reader:
        fd = sock.getsockopt(zmq.FD)
        self._readers[fd] = reader = sock, handle
        self._epoll.register(fd, select.EPOLLIN)
        return reader

    def _shared(self, data: bytes) -> Any:
        """Return a message that all stubs get, decoded once."""
        message = self._known.get(data)
        if message is None:
            if len(self._known) > 64:
                self._known.clear()
            message = self._known[data] = decode(data)
        return message

    def _on_credit(self, worker: WorkerStub, data: bytes) -> None:
        worker.on_credit(decode(data))

    def _on_block(self, worker: WorkerStub, data: bytes) -> None:
        worker.on_block(self._shared(data))

    def _on_event(self, stub: Stub, data: bytes) -> None:
        message = self._shared(data)
        match message:
            case RunStatePublished():
                stub.on_state(message)
            case RosterPublished() if message.number > stub.roster_number:
                members = {member.id: member for member in message.members}
                stub.on_roster(message.number, members.get(stub.name), message.frozen)
                if isinstance(stub, ProcessorStub):
                    # The launcher puts a processor's workers into the same process.
                    stub.workers = [worker for worker in self.workers if worker.name in members]
            case RecordsAcknowledged() if isinstance(stub, WorkerStub):
                stub.acknowledged(message.highest.get(stub.name, 0), monotonic())

    def run(self) -> None:
        """Run until the run has ended."""
        everybody = (*self.workers, *self.processors)
        while not all(stub.state.is_final for stub in everybody):
            began = monotonic()
            for fd, _ in self._epoll.poll(0):
                self._drain(*self._readers[fd])
            now = monotonic()
            for worker, credits in zip(self.workers, self._credits, strict=True):
                worker.work(now)
                # A send may have consumed the edge-triggered notification.
                self._drain(*credits)
            for processor in self.processors:
                processor.work(now)
            for stub in everybody:
                stub.beat(now)
            sleep(max(0.0, TICK_S - (monotonic() - began)))

    @staticmethod
    def _drain(sock: Any, handle: Callable[[bytes], None]) -> None:
        while sock.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            handle(sock.recv_multipart(zmq.NOBLOCK)[-1])

    def result(self) -> dict[str, Any]:
        """Return what the stubs of this process observed."""
        return {
            "starved_user_s": sum(w.starved_user_s for w in self.workers),
            "user_s": sum(w.user_s for w in self.workers),
            "longest_wait_s": max((w.longest_wait_s for w in self.workers), default=0.0),
            "round_trips_ms": [ns / 1e6 for w in self.workers for ns in w.round_trips_ns[8:]],
            "acknowledge_s": [s for w in self.workers for s in w.acknowledge_s],
            "completed": sum(w.completed for w in self.workers),
            "rows": sum(p.rows for p in self.processors),
            "final_state": max(
                (s.state for s in (*self.workers, *self.processors)), key=ORDER.index
            ).value,
        }
