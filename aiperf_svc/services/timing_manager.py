"""The timing manager owns the schedule: it grants credits, runs the phases and keeps the accounts.

`core/load/phase_machine.py` decides what is granted when, and when a phase ends. This service
reports events and the time to it and sends the messages that it asks for.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.messaging.bus import Bus, ask, decode, encode, receive_each
from aiperf_svc.core.load.phase_hooks import first_phase
from aiperf_svc.core.load.phase_machine import (
    AnnouncePhase,
    GrantCredits,
    Instruction,
    PhaseMachine,
    PhaseRequested,
    PublishReport,
    ReportClockSetBack,
    ReportMissingCredits,
    StopRequested,
    StopWorkers,
    TimePassed,
    Wait,
    WorkerLost,
)
from aiperf_svc.core.load.phase_plan import PhasePlan, plan_phase
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.base import Message
from aiperf_svc.protocol.messages.credits import (
    ClockProbed,
    CreditsGranted,
    CreditsReturned,
    PhaseOpened,
    PhaseStopped,
    WorkerAttached,
)
from aiperf_svc.protocol.messages.dataset import DatasetShape, DatasetShapeRequested
from aiperf_svc.protocol.messages.events import RosterPublished, RunStatePublished
from aiperf_svc.protocol.messages.reports import PhaseReport, WorkerCounts
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, is_set_within, wall_ns
from aiperf_svc.services.clock_probes import Arrival, reply_to
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.hook_calls import HookCalls


class TimingManager(BaseService):
    """Runs warmup and profiling when the run's state asks for it."""

    service = Service.TIMING_MANAGER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._drop = bus.bind(zmq.ROUTER, Port.CREDIT_DROP)
        self._returns = bus.bind(zmq.PULL, Port.CREDIT_RETURN)
        self._attached: dict[str, tuple[int, bytes]] = {}
        self._phases: dict[Phase, PhaseMachine] = {}
        self._reports: tuple[PhaseReport, ...] = ()
        self._shape: DatasetShape | None = None
        self._hooks = HookCalls(context)
        self._has_news = asyncio.Event()
        """This is set by each event that a waiting phase has to consider."""
        self.work = {
            RunState.CONFIGURING: self._configure,
            RunState.WARMUP: partial(self._run_phase, Phase.WARMUP),
            RunState.PROFILING: partial(self._run_phase, Phase.PROFILING),
            RunState.FAILED: self._hooks.close,
            RunState.CANCELLED: self._hooks.close,
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._drop, self._from_worker),
            receive_each(self._returns, self._take_return),
        ]

    def counts(self) -> tuple[WorkerCounts, ...]:
        """Return the accounts of each phase, summed over all workers."""
        return tuple(_total(phase, machine.counts()) for phase, machine in self._phases.items())

    def phases(self) -> tuple[PhaseReport, ...]:
        """Return the reports that were made at the last start or end of a phase."""
        return self._reports

    # --- messages --------------------------------------------------------------------------------

    async def _from_worker(self, message: AnyMessage, identity: bytes) -> None:
        arrival = Arrival()
        if message.run_id != self.context.run_id:
            return
        match message:
            case WorkerAttached(sender=sender, epoch=epoch):
                self._attached[sender] = (epoch, identity)
                self._has_news.set()
            case ClockProbed():
                await self._send_to(identity, reply_to(self, message, arrival))

    def _take_return(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id or not isinstance(message, CreditsReturned):
            return
        machine = self._phases.get(message.counts.phase)
        attached = self._attached.get(message.sender)
        if machine is not None and attached is not None and attached[0] == message.epoch:
            machine.handle(message)
            self._has_news.set()

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
                for machine in self._phases.values():
                    machine.handle(WorkerLost(member.id))
        self._has_news.set()

    def on_state(self, state: RunStatePublished) -> None:
        if self._is_stopping:
            self._hooks.stop()
            for machine in self._phases.values():
                machine.handle(StopRequested())
            self._has_news.set()

    @property
    def _is_stopping(self) -> bool:
        return self.is_cancelling or self.ends_early or self.state.is_final

    # --- configuring -----------------------------------------------------------------------------

    async def _configure(self) -> None:
        await self._fetch_shape()
        while len(self._attached) < self.context.topology.workers:
            self._has_news.clear()
            await self._has_news.wait()
        if self.context.run.is_held:
            # All workers have attached: the server is there.
            await self._hooks.before(first_phase(self.context.inference), is_first=True)

    async def _fetch_shape(self) -> None:
        sock = self.bus.connect(zmq.REQ, Port.DATASET_FRONT)
        shape = decode(await ask(sock, encode(DatasetShapeRequested(*self.header))))
        sock.close()
        assert isinstance(shape, DatasetShape)
        self._shape = shape

    # --- phases ----------------------------------------------------------------------------------

    async def _run_phase(self, phase: Phase) -> None:
        assert self._shape is not None
        plan = plan_phase(phase, self.context.inference, self._shape)
        if plan is None:
            return
        await self._hooks.before(phase, is_first=not self._phases)
        machine = PhaseMachine(plan, self._live_workers()[: plan.most_workers])
        self._phases[phase] = machine
        if self._is_stopping:
            machine.handle(StopRequested())
        await self._carry_out(plan, machine.handle(PhaseRequested(wall_ns(), self.start_wall_ns)))
        while not machine.has_ended:
            self._has_news.clear()
            await self._carry_out(plan, machine.handle(TimePassed(wall_ns())))
        await self._hooks.after(phase)
        self._report()

    def _live_workers(self) -> list[str]:
        """Return the workers that take part and are not lost, in the order of their ranks."""
        assert self.roster is not None
        workers = [m for m in self.roster.members if m.service is Service.WORKER and not m.lost]
        return [m.id for m in sorted(workers, key=lambda m: m.rank) if m.id in self._attached]

    async def _carry_out(self, plan: PhasePlan, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case GrantCredits():
                    await self._grant(plan, instruction)
                case Wait():
                    await self._wait(instruction)
                case AnnouncePhase():
                    await self._announce(plan, instruction)
                case PublishReport():
                    self._report()
                    self.beat()
                case StopWorkers(workers=workers, at_wall_ns=at):
                    stop = PhaseStopped(
                        *self.header, phase=plan.phase, stop_wall_ns=at, cancel_wall_ns=at
                    )
                    for worker in workers:
                        await self._send(worker, stop)
                case ReportMissingCredits(worker=worker, count=count):
                    self.log.error("%s has not accounted for %d credits", worker, count)
                case ReportClockSetBack(by_ns=by_ns):
                    self.fail(
                        f"the clock of the timing manager's machine was set back by "
                        f"{by_ns / 1e9:,.0f} s during the load, whose times are by that clock; let "
                        "the clock settle before a run (chrony, NTP)"
                    )

    def _report(self) -> None:
        self._reports = tuple(
            msgspec.structs.replace(machine.report(), hooks=self._hooks.made(phase))
            for phase, machine in self._phases.items()
        )

    async def _announce(self, plan: PhasePlan, announced: AnnouncePhase) -> None:
        for rank, worker in enumerate(announced.workers):
            opened = PhaseOpened(
                *self.header,
                phase=plan.phase,
                start_wall_ns=announced.start_wall_ns,
                stop_wall_ns=announced.stop_wall_ns,
                grace_ns=plan.grace_ns,
                is_open_loop=plan.is_open_loop,
                concurrency=plan.concurrency,
                ramp_ns=plan.ramp_ns,
                worker_rank=rank,
                worker_count=len(announced.workers),
                prefill_concurrency=plan.prefill_concurrency,
                prefill_ramp_ns=plan.prefill_ramp_ns,
            )
            await self._send(worker, opened)

    async def _grant(self, plan: PhasePlan, grant: GrantCredits) -> None:
        message = CreditsGranted(
            *self.header,
            phase=plan.phase,
            first_index=grant.first,
            stride=grant.stride,
            count=grant.count,
            due_wall_ns=grant.due_wall_ns,
            last_turns=grant.last_turns,
        )
        await self._send(grant.worker, message)

    async def _wait(self, wait: Wait) -> None:
        if wait.ends_on_news:
            await is_set_within(self._has_news, wait.at_most_s)
        else:
            await asyncio.sleep(wait.at_most_s)
        if wait.then_s:
            await asyncio.sleep(wait.then_s)


def _total(phase: Phase, counts: dict[str, WorkerCounts]) -> WorkerCounts:
    values = counts.values()
    return WorkerCounts(
        phase=phase,
        granted=sum(c.granted for c in values),
        completed=sum(c.completed for c in values),
        errored=sum(c.errored for c in values),
        cancelled=sum(c.cancelled for c in values),
        abandoned=sum(c.abandoned for c in values),
        unsent=sum(c.unsent for c in values),
        revoked=sum(c.revoked for c in values),
        requests_sent=sum(c.requests_sent for c in values),
        in_flight=sum(c.in_flight for c in values),
        capped=sum(c.capped for c in values),
        retries=sum(c.retries for c in values),
    )
