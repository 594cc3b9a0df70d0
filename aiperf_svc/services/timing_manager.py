"""The timing manager owns the schedule: it grants credits, runs the phases and keeps the accounts.
It also calls the hooks of a run, because it knows when a phase starts and ends.

`core/load/phase_machine.py` decides which credits are granted when, and when a phase ends. This
service reports events and the time to it and sends the messages that it returns.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.inference.side_requests import call_hook
from aiperf_svc.adapters.messaging.bus import Bus, ask, decode, encode, receive_each
from aiperf_svc.config.hooks import Hook
from aiperf_svc.config.units import format_duration
from aiperf_svc.core.load.phase_hooks import When, first_phase, hooks_at, origins
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
from aiperf_svc.domain.errors import BenchmarkFailed
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
from aiperf_svc.protocol.messages.reports import HookCall, PhaseReport, WorkerCounts
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, is_set_within, wall_ns
from aiperf_svc.services.clock_probes import Arrival, reply_to
from aiperf_svc.services.context import RunContext

_hook_log = logging.getLogger("hooks")


class HookCalls:
    """Calls each hook once for each server, sequentially.

    If a hook before a phase fails, the phase does not start. The hooks after it are called anyway,
    so a started profiler is stopped. A held run calls the hooks before its first phase during
    configuration. It gets its start time when all runs that start together are ready, so a hook
    delays none of them.
    """

    def __init__(self, context: RunContext) -> None:
        self._config, self._run_id = context.inference, context.run_id
        self._made: dict[Phase, tuple[HookCall, ...]] = {}
        self._limit: asyncio.Timeout | None = None
        self._is_stopped = False
        self._open: Phase | None = None
        """The phase whose hooks before it have been called, but not the hooks after it."""

    def made(self, phase: Phase) -> tuple[HookCall, ...]:
        """Return the calls before and after a phase so far."""
        return self._made.get(phase, ())

    def stop(self) -> None:
        """Stop waiting for a hook before a phase, because the run ends."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def before(self, phase: Phase, *, is_first: bool) -> None:
        """Call the hooks before a phase once. The rest is skipped when the run is stopped. Raises
        BenchmarkFailed if a hook fails."""
        if self._open is phase:
            return
        self._open = phase
        for hook in hooks_at(self._config.endpoint, "before", phase, is_first=is_first):
            for origin in origins(self._config.endpoint):
                if self._is_stopped:
                    return
                made = await self._call(hook, origin, "before", phase)
                if made.problem and not self._is_stopped:
                    await self.after(phase)
                    raise BenchmarkFailed(f"{made.text}: {made.problem}; the load has not begun")

    async def after(self, phase: Phase) -> None:
        """Call all hooks after a phase, regardless of their results."""
        self._open = None
        for hook in hooks_at(self._config.endpoint, "after", phase, is_first=False):
            for origin in origins(self._config.endpoint):
                made = await self._call(hook, origin, "after", phase)
                if made.problem:
                    _hook_log.warning("%s: %s", made.text, made.problem)

    async def close(self) -> None:
        """Call the hooks after a phase that did not start although its first hooks were called."""
        if self._open is not None:
            await self.after(self._open)

    async def _call(self, hook: Hook, origin: str, when: When, phase: Phase) -> HookCall:
        timeout_ns = hook.timeout or self._config.endpoint.request_timeout
        name = phase.name.lower()
        text = f"the hook {hook.method} {origin}{hook.path} {when} {name}"
        _hook_log.info("calling %s", text)
        began = time.monotonic()
        request_id = f"{self._run_id}-{when}-{name}"
        try:
            async with asyncio.timeout(timeout_ns / 1e9) as limit:
                self._limit = limit if when == "before" else None
                problem = await call_hook(hook, origin, self._config, request_id)
        except TimeoutError:
            problem = f"no response within {format_duration(timeout_ns)}"
            if self._is_stopped and when == "before":
                problem = "not waited for, because the run was stopped"
        finally:
            self._limit = None
        took_ms = (time.monotonic() - began) * 1e3
        made = HookCall(text=text, took_ms=took_ms, problem=problem)
        self._made[phase] = (*self.made(phase), made)
        return made


class TimingManager(BaseService):
    """Runs warmup and profiling when the run's state requests it."""

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
        """Set by each event that a waiting phase has to consider."""
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
            receive_each(self._returns, self._handle_return),
        ]

    def counts(self) -> tuple[WorkerCounts, ...]:
        """Return the accounts of each phase, summed over all workers."""
        return tuple(_total(phase, machine.counts()) for phase, machine in self._phases.items())

    def phases(self) -> tuple[PhaseReport, ...]:
        """Return the reports from the last start or end of a phase."""
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

    def _handle_return(self, message: AnyMessage, _frame: bytes) -> None:
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
            # It has left. The worker manager notices its missing heartbeats, and its credits become
            # lost.
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
            # All workers have connected, so the server responds.
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
        machine = PhaseMachine(plan, self._live_workers()[: plan.max_workers])
        self._phases[phase] = machine
        if self._is_stopping:
            machine.handle(StopRequested())
        await self._carry_out(plan, machine.handle(PhaseRequested(wall_ns(), self.start_wall_ns)))
        while not machine.has_ended:
            self._has_news.clear()
            await self._carry_out(plan, machine.handle(TimePassed(wall_ns())))
        await self._hooks.after(phase)
        self._report()
        if phase is Phase.WARMUP and self.context.inference.load.agentic is not None:
            self._check_filled(_total(phase, machine.counts()))

    def _check_filled(self, counts: WorkerCounts) -> None:
        """Fail the run unless all requests that fill the cache completed."""
        if counts.completed != counts.granted and not self._is_stopping:
            self.fail(
                f"{counts.granted - counts.completed:,} of {counts.granted:,} session trees could "
                "not fill the server's cache before the measurement (load.agentic); its results "
                "would be those of another state"
            )

    def _live_workers(self) -> list[str]:
        """Return the participating workers that are not lost, in the order of their ranks."""
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
                        f"the clock of the timing manager's machine went back by "
                        f"{by_ns / 1e9:,.0f} s during the load, so its times are wrong; wait until "
                        "the clock is synchronised (chrony, NTP) before a run"
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
