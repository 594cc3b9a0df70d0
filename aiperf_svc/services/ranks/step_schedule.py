"""Timing manager of a benchmark on ranks: runs the steps in order.

`workloads/step_machine.py` decides what happens when. This service reports events and the time to
it, and sends the orders that it returns. It also forwards commands that a rank starts on another
rank, like `mpirun`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.messaging.bus import Bus, encode, receive_each
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.base import Message
from aiperf_svc.protocol.messages.credits import ClockProbed
from aiperf_svc.protocol.messages.events import RosterPublished, RunStatePublished
from aiperf_svc.protocol.messages.reports import RankInfo, StepProgress
from aiperf_svc.protocol.messages.steps import (
    CommandLaunched,
    LaunchEnded,
    LaunchRequested,
    RankAttached,
    RankStatus,
    StepOrder,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, is_set_within, wall_ns
from aiperf_svc.services.clock_probes import Arrival, reply_to
from aiperf_svc.services.context import RunContext
from aiperf_svc.workloads.registry import tool_of
from aiperf_svc.workloads.step_machine import (
    Attempted,
    OrderRank,
    RankLost,
    StatusReceived,
    StepMachine,
    StopRequested,
    TimePassed,
)
from aiperf_svc.workloads.steps import Rank

POLL_S = 0.25
"""Longest interval between checks of the time."""


class StepSchedule(BaseService):
    service = Service.TIMING_MANAGER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._orders = bus.bind(zmq.ROUTER, Port.CREDIT_DROP)
        self._returns = bus.bind(zmq.PULL, Port.CREDIT_RETURN)
        self._attached: dict[int, tuple[RankAttached, bytes]] = {}
        """The latest status of each rank's courier, and the courier's identity on the socket."""
        self._machine: StepMachine | None = None
        self._launches: dict[str, int] = {}
        """The requesting rank of each launch."""
        self._has_news = asyncio.Event()
        self._infos: tuple[RankInfo, ...] = ()
        self._attempts = self._silent = 0
        self._texts: dict[int, str] = {}
        self.work = {
            RunState.CONFIGURING: self._configure,
            RunState.PROFILING: self._run_steps,
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._orders, self._from_courier),
            receive_each(self._returns, self._handle_return),
        ]

    def steps(self) -> StepProgress | None:
        machine = self._machine
        if machine is None:
            return None
        plan, others = machine.plan, len(machine.plans) - 1
        more = f" and {others:,} more" if others > 0 else ""
        return StepProgress(
            total=machine.total,
            ended=machine.ended,
            attempts=self._attempts,
            name=f"{plan.step.name}{more}" if plan else "",
            stage=machine.stage.value if plan else "",
            due_wall_ns=machine.due_wall_ns,
            expected_ns=plan.step.expected_ns if plan else 0,
            text=self._text(),
            failures=tuple(machine.failures),
            ranks=self._infos,
            silent=self._silent,
        )

    def _text(self) -> str:
        """Return the progress of the first rank that reports one."""
        reported = [(rank, text) for rank, text in sorted(self._texts.items()) if text]
        if not reported:
            return ""
        rank, text = reported[0]
        return f"rank {rank}: {text}" if len(reported) > 1 else text

    # --- messages --------------------------------------------------------------------------------

    async def _from_courier(self, message: AnyMessage, identity: bytes) -> None:
        arrival = Arrival()
        if message.run_id != self.context.run_id:
            return
        match message:
            case RankAttached(number=number):
                self._attached[number] = (message, identity)
                self._has_news.set()
            case ClockProbed():
                await self._send_to(identity, reply_to(self, message, arrival))

    async def _handle_return(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id:
            return
        rank = self._rank_of(message.sender, message.epoch)
        if rank is None:
            return
        match message:
            case RankStatus():
                self._texts[rank] = message.progress
                if self._machine is not None:
                    self._machine.handle(StatusReceived(rank, message))
                    self._has_news.set()
            case LaunchRequested():
                await self._launch(rank, message)
            case LaunchEnded(launch=launch) if launch in self._launches:
                await self._send(self._launches.pop(launch), message)

    def _rank_of(self, sender: str, epoch: int) -> int | None:
        ranks = (
            n for n, (m, _) in self._attached.items() if (m.sender, m.epoch) == (sender, epoch)
        )
        return next(ranks, None)

    async def _launch(self, rank: int, request: LaunchRequested) -> None:
        found = [n for n, (each, _) in self._attached.items() if each.address == request.address]
        if not found:
            reason = f"no rank has the address {request.address}".encode()
            await self._send(rank, LaunchEnded(*self.header, request.launch, 255, b"", reason))
            return
        self._launches[request.launch] = rank
        ordered = CommandLaunched(*self.header, request.step, request.launch, request.command)
        await self._send(found[0], ordered)

    async def _send(self, rank: int, message: Message) -> None:
        await self._send_to(self._attached[rank][1], message)

    async def _send_to(self, identity: bytes, message: Message) -> None:
        try:
            await self._orders.send_multipart([identity, encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            # It has disconnected; the worker manager notices its missing heartbeats.
            self.log.warning("no courier %s", identity.decode())

    def on_roster(self, roster: RosterPublished) -> None:
        if self._machine is not None:
            for member in roster.members:
                rank = self._rank_of(member.id, member.epoch)
                if member.lost and rank is not None:
                    self._machine.handle(RankLost(rank))
        self._has_news.set()

    def on_state(self, state: RunStatePublished) -> None:
        if self._is_stopping and self._machine is not None:
            self._machine.handle(StopRequested())
        self._has_news.set()

    @property
    def _is_stopping(self) -> bool:
        return self.is_cancelling or self.state.is_final

    # --- work ------------------------------------------------------------------------------------

    async def _configure(self) -> None:
        while len(self._attached) < self.context.topology.workers:
            self._has_news.clear()
            await self._has_news.wait()

    async def _run_steps(self) -> None:
        config = self.context.ranks
        ranks = [self._rank(message) for message, _ in self._attached.values()]
        ranks.sort(key=lambda rank: rank.number)
        roles = tool_of(config).role_names(config)
        self._infos = tuple(
            RankInfo(n, roles[n], m.node, m.address, m.cores, m.memory_bytes)
            for n, (m, _) in sorted(self._attached.items())
        )
        self._machine = machine = StepMachine(
            tool_of(config).planned_steps(config, ranks),
            repetitions=config.repetitions,
            retries=config.workload.retries,
        )
        if self._is_stopping:
            machine.handle(StopRequested())
        await self._wait_for_start()
        while machine.end is None:
            self._has_news.clear()
            before = machine.plans, machine.stage
            for instruction in machine.handle(TimePassed(wall_ns())):
                match instruction:
                    case OrderRank():
                        await self._order(instruction)
                    case Attempted(plan=plan, problem=problem, lost_ranks=lost):
                        self._attempts += 1
                        self._silent += lost == plan.step.ranks
                        self._texts.clear()
                        self.log.info(
                            "step %d %s: %s", plan.number, plan.step.name, problem or "ok"
                        )
            if before != (machine.plans, machine.stage):
                self.beat()
            if machine.end is None:
                await is_set_within(self._has_news, POLL_S)
        self.log.info("steps are over: %s", machine.end.value)

    async def _wait_for_start(self) -> None:
        """Wait for the start time of the run, if it has one."""
        while not self._is_stopping and (left_ns := self.start_wall_ns - wall_ns()) > 0:
            self._has_news.clear()
            await is_set_within(self._has_news, left_ns / 1e9)

    def _rank(self, attached: RankAttached) -> Rank:
        return Rank(
            number=attached.number,
            role=tool_of(self.context.ranks).role_names(self.context.ranks)[attached.number],
            address=attached.address,
            node=attached.node,
            work=attached.work,
            volume=attached.volume,
            agent=attached.agent,
            interface=attached.interface,
            cores=attached.cores,
        )

    async def _order(self, ordered: OrderRank) -> None:
        order = StepOrder(
            *self.header,
            step=ordered.plan.number,
            stage=ordered.stage,
            abort_reason=ordered.abort_reason,
            plan=msgspec.json.encode(ordered.plan),
            due_wall_ns=ordered.due_wall_ns,
        )
        await self._send(ordered.rank, order)
