"""Timing manager: owns the schedule. Grants credits, runs the phases, keeps the accounts.

Open loop: due times are drawn ahead and granted `GRANT_AHEAD_NS` before they are due, so that no
message is between a request and its time. Closed loop: workers hold a few credits more than they
have users and the ledger refills them. The end of a phase is announced with its start; only an
early stop needs a message.
"""

import asyncio
import json
import math
from collections.abc import Coroutine
from typing import Any

import numpy as np
import zmq

from aiperf_svc.adapters.host.clocks import raw_ns, read_clocks
from aiperf_svc.adapters.messaging.bus import Bus, ask, decode, encode, receive_each
from aiperf_svc.core.control.control_intervals import grant_interval_s
from aiperf_svc.core.load.arrivals import Arrivals
from aiperf_svc.core.load.credit_ledger import CreditLedger, Grant
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import (
    AnyMessage,
    ClockAnswered,
    ClockProbed,
    CreditsGranted,
    CreditsReturned,
    DatasetShape,
    DatasetShapeRequested,
    Message,
    PhaseOpened,
    PhaseStopped,
    RosterPublished,
    RunState,
    RunStatePublished,
    Service,
    WorkerAttached,
    WorkerCounts,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.services.base import BaseService, is_set_within, wall_ns
from aiperf_svc.services.context import RunContext

ANNOUNCE_NS = 500_000_000
"""A phase is announced so long before its start: time for every worker to hear of it and
connect."""
CONNECTS_PER_S = 4_000
"""Connections that one worker opens a second; a phase with many users is announced earlier."""
GRANT_AHEAD_NS = 200_000_000
GRANT_EVERY_S = 0.05
TICK_S = 0.01
"""Longest delay of a closed-loop grant when a worker's return is lost in thought."""
SETTLE_NS = 5_000_000_000
"""After the end of the grace period, how long to wait for the last returns of live workers."""


class TimingManager(BaseService):
    """Runs warmup and profiling when the run's state asks for it."""

    service = Service.TIMING_MANAGER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._drop = bus.bind(zmq.ROUTER, Port.CREDIT_DROP)
        self._returns = bus.bind(zmq.PULL, Port.CREDIT_RETURN)
        self._attached: dict[str, tuple[int, bytes]] = {}
        self._ledgers: dict[Phase, CreditLedger] = {}
        self._starts: dict[Phase, tuple[int, int]] = {}
        self._stops: dict[Phase, int] = {}
        self._turns: np.ndarray[Any, np.dtype[np.uint16]] | None = None
        self._shape: DatasetShape | None = None
        self._moved = asyncio.Event()
        self._stop_wall_ns = 0
        self._cancel_wall_ns = 0
        self.work = {
            RunState.CONFIGURING: self._configure,
            RunState.WARMUP: self._run_warmup,
            RunState.PROFILING: self._run_profiling,
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._drop, self._from_worker),
            receive_each(self._returns, self._take_return),
        ]

    def counts(self) -> tuple[WorkerCounts, ...]:
        """Of all workers together, per phase."""
        return tuple(_total(phase, ledger.counts()) for phase, ledger in self._ledgers.items())

    # --- messages --------------------------------------------------------------------------------

    async def _from_worker(self, message: AnyMessage, identity: bytes) -> None:
        received, received_raw = wall_ns(), raw_ns()
        if message.run_id != self.context.run_id:
            return
        match message:
            case WorkerAttached(sender=sender, epoch=epoch):
                self._attached[sender] = (epoch, identity)
                self._moved.set()
            case ClockProbed(sent_wall_ns=sent, sent_raw_ns=sent_raw):
                clocks = read_clocks()
                answer = ClockAnswered(
                    *self.header,
                    sent_wall_ns=sent,
                    received_wall_ns=received,
                    answered_wall_ns=clocks.wall_ns,
                    boot_id=self.context.boot_id,
                    sent_raw_ns=sent_raw,
                    received_raw_ns=received_raw,
                    answered_raw_ns=clocks.raw_ns,
                    slack_ns=clocks.slack_ns,
                )
                await self._send_to(identity, answer)

    def _take_return(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id or not isinstance(message, CreditsReturned):
            return
        ledger = self._ledgers.get(message.counts.phase)
        attached = self._attached.get(message.sender)
        if ledger is not None and attached is not None and attached[0] == message.epoch:
            ledger.returned(
                message.sender,
                message.counts,
                is_idle=message.is_idle,
                taken_mono_ns=message.taken_mono_ns,
            )
            self._moved.set()

    async def _send_to(self, identity: bytes, message: Message) -> None:
        try:
            await self._drop.send_multipart([identity, encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            # Gone; its silence is noticed by the worker manager, its credits become lost.
            self.log.warning("no worker %s", identity.decode())

    async def _send(self, worker: str, message: Message) -> None:
        await self._send_to(self._attached[worker][1], message)

    def on_roster(self, roster: RosterPublished) -> None:
        for member in roster.members:
            if member.lost and member.service is Service.WORKER:
                for ledger in self._ledgers.values():
                    ledger.lose(member.id)
        self._moved.set()

    def on_state(self, state: RunStatePublished) -> None:
        if state.is_cancelling or state.state.is_final:
            self._moved.set()

    # --- configuring -----------------------------------------------------------------------------

    async def _configure(self) -> None:
        await self._fetch_shape()
        while len(self._attached) < self.context.topology.workers:
            self._moved.clear()
            await self._moved.wait()

    async def _fetch_shape(self) -> None:
        sock = self.bus.connect(zmq.REQ, Port.DATASET_FRONT)
        shape = decode(await ask(sock, encode(DatasetShapeRequested(*self.header))))
        sock.close()
        assert isinstance(shape, DatasetShape)
        self._shape = shape
        if shape.turns:
            self._turns = np.frombuffer(shape.turns, dtype="<u2")

    # --- phases ----------------------------------------------------------------------------------

    async def _run_warmup(self) -> None:
        warmup = self.context.config.load.warmup
        if warmup is not None:
            await self._run_phase(
                Phase.WARMUP, warmup.requests, warmup.duration or 0, warmup.grace_period, ramp_ns=0
            )

    async def _run_profiling(self) -> None:
        load = self.context.config.load
        await self._run_phase(
            Phase.PROFILING, load.requests, load.duration or 0, load.grace_period, ramp_ns=load.ramp
        )

    async def _run_phase(
        self, phase: Phase, requests: int | None, duration_ns: int, grace_ns: int, *, ramp_ns: int
    ) -> None:
        load = self.context.config.load
        ranks = self._live_ranks()
        total, last_turns = self._credits_for(phase, requests)
        concurrency = load.concurrency or 0
        users = {
            name: len(range(rank, concurrency, len(ranks))) if not load.is_open_loop else 0
            for rank, name in enumerate(ranks)
        }
        ledger = CreditLedger(phase, users=users, total=total)
        self._ledgers[phase] = ledger
        widest = max(users.values(), default=0)
        start = wall_ns() + ANNOUNCE_NS + math.ceil(widest / CONNECTS_PER_S * 1e9)
        self._stop_wall_ns = start + duration_ns if duration_ns else 0
        self._cancel_wall_ns = self._stop_wall_ns + grace_ns if duration_ns else 0
        self._stops[phase] = self._stop_wall_ns
        for rank, name in enumerate(ranks):
            opened = PhaseOpened(
                *self.header,
                phase=phase,
                start_wall_ns=start,
                stop_wall_ns=self._stop_wall_ns,
                grace_ns=grace_ns,
                is_open_loop=load.is_open_loop,
                concurrency=concurrency,
                ramp_ns=ramp_ns,
                worker_rank=rank,
                worker_count=len(ranks),
            )
            await self._send(name, opened)
        self._starts[phase] = (start, ramp_ns)
        self._report()
        if load.is_open_loop:
            await self._grant_open_loop(phase, ledger, start, total, last_turns, ramp_ns)
        else:
            await self._grant_closed_loop(phase, ledger, total, last_turns)
        await self._settle(ledger)
        if ledger.has_run_out:
            self._stops[phase] = 0
        self._report()

    def _report(self) -> None:
        """Tell the records manager when the phases were, and what lost workers had been granted."""
        phases = {}
        to_lost: dict[str, dict[str, int]] = {}
        for phase, (start, ramp_ns) in self._starts.items():
            ledger, key = self._ledgers[phase], str(int(phase))
            phases[key] = {
                "start_wall_ns": start,
                "stop_wall_ns": self._stops.get(phase, 0),
                "ramp_ns": ramp_ns,
                "granted": ledger.granted,
            }
            for name in ledger.lost_workers:
                to_lost.setdefault(name, {})[key] = ledger.counts()[name].granted
        self.detail = json.dumps({"phases": phases, "granted_to_lost": to_lost}).encode()
        self.beat()

    def _live_ranks(self) -> list[str]:
        assert self.roster is not None
        workers = [m for m in self.roster.members if m.service is Service.WORKER and not m.lost]
        return [m.id for m in sorted(workers, key=lambda m: m.rank) if m.id in self._attached]

    def _credits_for(self, phase: Phase, requests: int | None) -> tuple[int | None, int]:
        """Conversations that make up so many requests, and the turns of the last one (0: all)."""
        if requests is None or self._turns is None:
            return requests, 0
        assert self._shape is not None
        own = self._shape.warmup_entries
        split = len(self._turns) - own
        turns = self._turns[split:] if phase is Phase.WARMUP and own else self._turns[:split]
        sums = np.cumsum(turns, dtype=np.int64)
        rounds, rest = divmod(requests, int(sums[-1]))
        if rest == 0:
            return rounds * len(turns), 0
        last = int(np.searchsorted(sums, rest, side="left"))
        before = int(sums[last - 1]) if last else 0
        whole = rest - before == int(turns[last])
        return rounds * len(turns) + last + 1, 0 if whole else rest - before

    async def _grant_closed_loop(
        self, phase: Phase, ledger: CreditLedger, total: int | None, last_turns: int
    ) -> None:
        while not self._is_over(ledger):
            self._moved.clear()
            for grant in ledger.closed_loop_grants():
                await self._send(grant.worker, self._granted(phase, grant, total, last_turns))
            if ledger.remaining == 0:
                return
            await self._wait(TICK_S)
            await asyncio.sleep(grant_interval_s(len(ledger.workers)))

    def _granted(
        self, phase: Phase, grant: Grant, total: int | None, last_turns: int
    ) -> CreditsGranted:
        is_last = total is not None and grant.first + grant.count == total
        return CreditsGranted(
            *self.header,
            phase=phase,
            first_index=grant.first,
            stride=1,
            count=grant.count,
            last_turns=last_turns if is_last else 0,
        )

    async def _grant_open_loop(
        self,
        phase: Phase,
        ledger: CreditLedger,
        start: int,
        total: int | None,
        last_turns: int,
        ramp_ns: int,
    ) -> None:
        load = self.context.config.load
        assert load.request_rate is not None
        arrivals = Arrivals(
            rate=load.request_rate,
            pattern=load.arrival.pattern,
            burstiness=load.arrival.burstiness,
            ramp_ns=ramp_ns,
            seed=self.context.config.random_seed,
            stream=int(phase),
        )
        while not self._is_over(ledger):
            horizon = wall_ns() + GRANT_AHEAD_NS + round(GRANT_EVERY_S * 1e9)
            if self._stop_wall_ns:
                horizon = min(horizon, self._stop_wall_ns)
            due = arrivals.take(before_ns=horizon - start, at_most=ledger.remaining)
            await self._grant_due(phase, ledger, due + start, total, last_turns)
            if ledger.remaining == 0 or horizon == self._stop_wall_ns:
                return
            await asyncio.sleep(GRANT_EVERY_S)

    async def _grant_due(
        self,
        phase: Phase,
        ledger: CreditLedger,
        due: np.ndarray[Any, np.dtype[np.int64]],
        total: int | None,
        last_turns: int,
    ) -> None:
        """Deal arrivals out in turn, so that every worker sees the same process, thinned."""
        workers = ledger.workers
        first = ledger.next_index
        for position in range(min(len(workers), len(due))):
            mine = due[position :: len(workers)]
            name = workers[(first + position) % len(workers)]
            ledger.grant(name, len(mine))
            last_index = first + position + (len(mine) - 1) * len(workers)
            is_last = total is not None and last_index == total - 1
            await self._send(
                name,
                CreditsGranted(
                    *self.header,
                    phase=phase,
                    first_index=first + position,
                    stride=len(workers),
                    count=len(mine),
                    due_wall_ns=mine.astype("<i8").tobytes(),
                    last_turns=last_turns if is_last else 0,
                ),
            )

    # --- the end of a phase ----------------------------------------------------------------------

    def _is_over(self, ledger: CreditLedger) -> bool:
        past = self._stop_wall_ns and wall_ns() >= self._stop_wall_ns
        ended = self.is_cancelling or self.state.is_final
        return bool(past or ended or not ledger.workers)

    async def _settle(self, ledger: CreditLedger) -> None:
        """Wait until every credit has come back or is lost; stop early when that is asked for."""
        has_stopped = False
        while not ledger.is_settled:
            if (self.is_cancelling or self.state.is_final) and not has_stopped:
                has_stopped = True
                now = wall_ns()
                self._cancel_wall_ns = now
                self._stops[ledger.phase] = now
                for name in ledger.workers:
                    stop = PhaseStopped(
                        *self.header, phase=ledger.phase, stop_wall_ns=now, cancel_wall_ns=now
                    )
                    await self._send(name, stop)
            if self._cancel_wall_ns and wall_ns() > self._cancel_wall_ns + SETTLE_NS:
                self._give_up(ledger)
                return
            self._moved.clear()
            await self._wait(0.1)
            await asyncio.sleep(grant_interval_s(len(ledger.workers)))

    def _give_up(self, ledger: CreditLedger) -> None:
        for name, counts in ledger.counts().items():
            ended = counts.completed + counts.errored + counts.cancelled
            ended += counts.unsent + counts.revoked
            if ended != counts.granted:
                self.log.error("%s has not accounted for %d credits", name, counts.granted - ended)
                ledger.lose(name)

    async def _wait(self, at_most_s: float) -> None:
        await is_set_within(self._moved, at_most_s)


def _total(phase: Phase, counts: dict[str, WorkerCounts]) -> WorkerCounts:
    values = counts.values()
    return WorkerCounts(
        phase=phase,
        granted=sum(c.granted for c in values),
        completed=sum(c.completed for c in values),
        errored=sum(c.errored for c in values),
        cancelled=sum(c.cancelled for c in values),
        unsent=sum(c.unsent for c in values),
        revoked=sum(c.revoked for c in values),
        requests_sent=sum(c.requests_sent for c in values),
        in_flight=sum(c.in_flight for c in values),
        capped=sum(c.capped for c in values),
        retries=sum(c.retries for c in values),
    )
