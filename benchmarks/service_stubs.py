"""Stand-ins for workers and record processors that speak the real protocol over real sockets.

One process plays many of each. A worker stub registers, sends heartbeats, probes the clock, fetches
dataset blocks, takes credits and returns them, at the rate that its users would have; a processor
stub sends batches of metric rows of the real layout and size for the requests that its workers
have ended. Nobody opens a connection to a target. What a real service reads and ignores is read
here too, but decoded once for all stubs of a process.
"""

import argparse
import json
import select
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import Any

import numpy as np
import zmq

from aiperf_svc.adapters.bus import DOWN, UP, Bus, decode, encode
from aiperf_svc.adapters.child_processes import die_with_parent
from aiperf_svc.adapters.machine import raise_fd_limit
from aiperf_svc.core import pacing
from aiperf_svc.core.histogram import delta_of
from aiperf_svc.core.run_machine import ORDER
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages import (
    ClockAnswered,
    ClockEstimate,
    ClockProbed,
    CreditsGranted,
    CreditsReturned,
    DatasetBlock,
    DatasetBlockRequested,
    Heartbeat,
    Member,
    MetricBatch,
    PhaseOpened,
    PhaseStopped,
    RecordsAcknowledged,
    RosterPublished,
    RunState,
    RunStatePublished,
    SequenceSpan,
    Service,
    Vitals,
    WorkerAttached,
    WorkerCounts,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag
from aiperf_svc.services.base import HEARTBEAT_S, REGISTERING_S
from aiperf_svc.services.context import RunContext, read_context

TICK_S = 0.05
RAW_BATCH_S = 0.05
"""A worker hands over what it has so often."""
ANSWER_S = 8.0
"""Of each simulated request: about 150 tokens at 50 ms."""
GAPS = 64
"""Further chunks of each batch whose gaps go into the pooled histogram's delta."""


class PlainBus(Bus):
    """The product's sockets without an event loop."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context.addresses, curve=context.curve)
        self._context = zmq.Context()
        self._context.max_sockets = 16_384


class Stub:
    """What workers and processors have in common."""

    service: Service

    def __init__(self, context: RunContext, bus: PlainBus, name: str) -> None:
        self.context, self.name = context, name
        self.header = (context.run_id, name, context.epoch)
        connect = bus.addresses.connect
        self.publisher = bus.connect(zmq.PUB, connect(Port.EVENTS_IN))
        self.subscriber = bus.connect(zmq.SUB, connect(Port.EVENTS_OUT))
        self.subscriber.setsockopt(zmq.SUBSCRIBE, DOWN)
        self.reached, self.state, self.state_number = RunState.PENDING, RunState.PENDING, 0
        self.roster_number = 0
        self.member: Member | None = None
        self.beat_at, self.beat_interval_s = 0.0, REGISTERING_S
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
        """The work of a state is done at once."""
        self.reached = self.state

    def beat(self, now: float) -> None:
        if now < self.beat_at:
            return
        if self.member is not None:
            self.beat_interval_s = HEARTBEAT_S
        self.beat_at = now + self.beat_interval_s
        self.beat_interval_s = min(HEARTBEAT_S, self.beat_interval_s * 2)
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
        self.publisher.send_multipart([UP, encode(beat)])

    def counts(self) -> tuple[WorkerCounts, ...]:
        return ()


class WorkerStub(Stub):
    """A fluid model of a worker in closed loop: its users end `1 / ANSWER_S` requests a second."""

    service = Service.WORKER

    def __init__(self, context: RunContext, bus: PlainBus, name: str) -> None:
        super().__init__(context, bus, name)
        connect = bus.addresses.connect
        identity = f"{name}.{context.epoch:x}".encode()
        self.credits = bus.connect(zmq.DEALER, connect(Port.CREDIT_DROP), identity=identity)
        self.returns = bus.connect(zmq.PUSH, connect(Port.CREDIT_RETURN))
        self.dataset = bus.connect(zmq.REQ, connect(Port.DATASET_FRONT))
        self.blocks_left = -1
        self.opened: PhaseOpened | None = None
        self.users = self.granted = self.completed = self.revoked = self.seq = 0
        self.carry, self.last_at = 0.0, 0.0
        self.starved_user_s = self.user_s = self.waited_s = self.longest_wait_s = 0.0
        self.is_stopped = False
        self.told: WorkerCounts | None = None
        self.return_at = self.probe_at = 0.0
        self.probes = 0
        self.round_trips_ns: list[int] = []
        self.sent: list[tuple[int, float]] = []
        """(last sequence number of a batch, when it was sent), not acknowledged yet."""
        self.acknowledge_s: list[float] = []

    def attach(self) -> None:
        self.credits.send(encode(WorkerAttached(*self.header)))

    def act(self) -> None:
        if self.state is RunState.CONFIGURING and self.blocks_left != 0:
            if self.blocks_left < 0:
                self.ask(0)
        else:
            self.reached = self.state

    def ask(self, block: int) -> None:
        self.dataset.send(encode(DatasetBlockRequested(*self.header, block=block)))

    def on_block(self, block: DatasetBlock) -> None:
        self.blocks_left = block.block_count - block.block - 1
        if self.blocks_left:
            self.ask(block.block + 1)
        else:
            self.reached, self.beat_at = self.state, 0.0

    def on_credit(self, message: Any) -> None:
        match message:
            case ClockAnswered():
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
        """End what has ended since the last tick."""
        if now >= self.probe_at:
            self.probes += 1
            self.probe_at = now + (0.02 if self.probes < 8 else 1.0)
            self.credits.send(encode(ClockProbed(*self.header, sent_wall_ns=time_ns())))
        opened = self.opened
        if opened is None or time_ns() < opened.start_wall_ns:
            self.last_at = now
            return
        elapsed_s, self.last_at = now - self.last_at, now
        is_over = self.is_stopped or 0 < opened.stop_wall_ns <= time_ns()
        ended = self.completed + self.revoked
        if is_over:
            # What is in flight ends at once, the rest was never begun.
            in_flight = min(self.users, self.granted - ended)
            self.completed += in_flight
            self.revoked += self.granted - ended - in_flight
            self.users = 0
        else:
            in_flight = min(self.users, self.granted - ended)
            self._note_starved(self.users - in_flight, elapsed_s)
            self.carry += in_flight * elapsed_s / ANSWER_S
            ends = min(int(self.carry), in_flight)
            self.carry -= ends
            self.completed += ends
        interval_s = pacing.return_interval_s(opened.worker_count)
        starved = self.users > self.granted - self.completed - self.revoked
        if now >= self.return_at or starved:
            self.return_at = now + interval_s
            counts = self._now()
            if counts != self.told:
                self.told = counts
                is_idle = self.granted == self.completed + self.revoked
                self.returns.send(encode(CreditsReturned(*self.header, counts, is_idle)))

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
            max_in_flight=self.users,
            last_seq=self.completed,
        )

    def counts(self) -> tuple[WorkerCounts, ...]:
        return () if self.opened is None else (self._now(),)


class ProcessorStub(Stub):
    """Sends what its workers have ended as batches of rows."""

    service = Service.RECORD_PROCESSOR

    def __init__(self, context: RunContext, bus: PlainBus, name: str) -> None:
        super().__init__(context, bus, name)
        self.records = bus.connect(zmq.PUSH, bus.addresses.connect(Port.RECORDS))
        self.address = f"tcp://127.0.0.1:1/{name}"
        self.workers: list[WorkerStub] = []
        self.batch_at = 0.0
        self.rows = 0
        self.gaps = delta_of(
            np.full(GAPS, 50_000_000, dtype=np.int64) + np.arange(GAPS) * 100_000,
            phase=Phase.PROFILING,
            tag="inter_chunk_latency",
        )

    def work(self, now: float) -> None:
        """Send a batch when it is time."""
        if now < self.batch_at:
            return
        self.batch_at = now + max(
            RAW_BATCH_S, pacing.batch_interval_s(self.context.topology.workers)
        )
        for worker in self.workers:
            if worker.completed > worker.seq and worker.member is not None:
                first, last = worker.seq + 1, worker.completed
                rows = _rows(worker.member.rank, first, last)
                batch = MetricBatch(
                    *self.header,
                    spans=(SequenceSpan(worker.name, worker.context.epoch, first, last),),
                    rows=rows.tobytes(),
                    histograms=(self.gaps,),
                )
                self.records.send(encode(batch))
                self.rows += len(rows)
                worker.seq = last
                worker.sent.append((last, now))


def _rows(rank: int, first: int, last: int) -> np.ndarray[Any, Any]:
    """Records of requests that have just ended."""
    count, end = last - first + 1, time_ns()
    rows = np.zeros(count, dtype=METRIC_DTYPE)
    start = end - round(ANSWER_S * 1e9)
    rows["seq"] = np.arange(first, last + 1)
    rows["index"] = np.arange(first, last + 1)
    for name in ("due_wall_ns", "start_wall_ns", "sent_wall_ns"):
        rows[name] = start
    for name in ("ack_wall_ns", "first_token_wall_ns", "first_output_wall_ns"):
        rows[name] = start + 400_000_000
    rows["second_token_wall_ns"] = start + 450_000_000
    rows["last_token_wall_ns"] = rows["end_wall_ns"] = end
    rows["chunks"] = rows["reads"] = rows["output_tokens"] = 150
    rows["usage_prompt_tokens"] = rows["input_tokens"] = 550
    rows["usage_completion_tokens"] = 150
    rows["reasoning_tokens"] = -1
    rows["worker"], rows["status"], rows["phase"] = rank, 200, int(Phase.PROFILING)
    rows["outcome"] = int(Outcome.COMPLETED)
    rows["flags"] = int(Flag.STREAMED | Flag.REUSED | Flag.LAST_TURN)
    return rows


class Company:
    """All stubs of one process, in one loop."""

    def __init__(self, workers: list[str], processors: list[str]) -> None:
        context = read_context()
        self._bus = PlainBus(context)
        self._epoll = select.epoll()
        self._readers: dict[int, tuple[Any, Callable[[bytes], None]]] = {}
        self.workers = [WorkerStub(context, self._bus, name) for name in workers]
        self.processors = [ProcessorStub(context, self._bus, name) for name in processors]
        self._known: dict[bytes, Any] = {}
        self._rosters: dict[bytes, tuple[RosterPublished, dict[str, Member]]] = {}
        for stub in (*self.workers, *self.processors):
            self._watch(stub.subscriber, lambda data, stub=stub: self._on_event(stub, data))
        for worker in self.workers:
            self._watch(worker.credits, lambda data, w=worker: w.on_credit(decode(data)))
            self._watch(worker.dataset, lambda data, w=worker: w.on_block(self._shared(data)))
            worker.attach()

    def _watch(self, sock: Any, handle: Callable[[bytes], None]) -> None:
        self._readers[sock.FD] = sock, handle
        self._epoll.register(sock.FD, select.EPOLLIN)

    def _shared(self, data: bytes) -> Any:
        """A message that all stubs get, decoded once."""
        message = self._known.get(data)
        if message is None:
            if len(self._known) > 64:
                self._known.clear()
            message = self._known[data] = decode(data)
        return message

    def _on_event(self, stub: Stub, data: bytes) -> None:
        message = self._shared(data)
        match message:
            case RunStatePublished():
                stub.on_state(message)
            case RosterPublished() if message.number > stub.roster_number:
                if data not in self._rosters:
                    self._rosters.clear()
                    self._rosters[data] = message, {m.id: m for m in message.members}
                stub.on_roster(
                    message.number, self._rosters[data][1].get(stub.name), message.frozen
                )
                if message.frozen:
                    self._take_workers(message)
            case RecordsAcknowledged() if isinstance(stub, WorkerStub):
                stub.acknowledged(message.highest.get(stub.name, 0), monotonic())

    def _take_workers(self, roster: RosterPublished) -> None:
        """The launcher puts a processor's workers into its own process: ranks are natural."""
        if any(p.workers for p in self.processors):
            return
        mine = {processor.name: processor for processor in self.processors}
        by_name = {worker.name: worker for worker in self.workers}
        for member in roster.members:
            if member.processor in mine and member.id in by_name:
                mine[member.processor].workers.append(by_name[member.id])

    def run(self) -> None:
        """Until the run has ended."""
        everybody = (*self.workers, *self.processors)
        while not all(stub.state.is_final for stub in everybody):
            began = monotonic()
            for fd, _ in self._epoll.poll(0):
                self._drain(*self._readers[fd])
            now = monotonic()
            for worker in self.workers:
                worker.work(now)
                self._drain(*self._readers[worker.credits.FD])
            for processor in self.processors:
                processor.work(now)
            for stub in everybody:
                stub.beat(now)
            sleep(max(0.0, TICK_S - (monotonic() - began)))

    @staticmethod
    def _drain(sock: Any, handle: Callable[[bytes], None]) -> None:
        while sock.EVENTS & zmq.POLLIN:
            handle(sock.recv_multipart(zmq.NOBLOCK)[-1])

    def result(self) -> dict[str, Any]:
        """What this process' stubs have seen."""
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


def main() -> None:
    """Play the stubs whose numbers are this process' share."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("workers", "processors", "share", "of"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    die_with_parent()
    raise_fd_limit()
    processors = [n for n in range(options.processors) if n % options.of == options.share]
    mine = set(processors)
    workers = [n for n in range(options.workers) if n % options.processors in mine]
    company = Company(
        [f"worker-{n}" for n in workers], [f"record-processor-{n}" for n in processors]
    )
    company.run()
    options.result.write_text(json.dumps(company.result()))


if __name__ == "__main__":
    main()
