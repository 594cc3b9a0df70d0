"""Record processor of a benchmark on ranks: collects the ranks' output of a step and parses it.

Every piece is passed on to the records manager, which stores the raw output. The output is parsed
when the last piece of the last rank has arrived.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.messaging.bus import Bus, encode, receive_each
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.events import RosterPublished
from aiperf_svc.protocol.messages.steps import StepOutput, StepRecord, rank_number
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService
from aiperf_svc.services.context import RunContext
from aiperf_svc.workloads.gathering import GatheredStep


class StepReader(BaseService):
    """Parses output into readings."""

    service = Service.RECORD_PROCESSOR

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._records = bus.connect(zmq.PUSH, Port.RECORDS)
        self._raw = bus.bind(zmq.ROUTER, Port.RAW_DIRECT, instance=self.id)
        self.address = bus.advertised(self._raw)
        self._steps: dict[int, GatheredStep] = {}
        self._lost: set[int] = set()
        self._roster_changed = asyncio.Event()

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [receive_each(self._raw, self._handle_output), self._conclude_after_losses()]

    async def _handle_output(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id or not isinstance(message, StepOutput):
            return
        # Before parsing, so the raw output is kept even if it cannot be parsed.
        await self._records.send(encode(message))
        step = self._steps.setdefault(message.step, GatheredStep(message.step))
        step.add(message)
        self.batches_read += 1
        await self._conclude(step)

    def on_roster(self, roster: RosterPublished) -> None:
        for member in roster.members:
            if member.lost and member.service is Service.WORKER:
                self._lost.add(rank_number(member.id))
        if self._steps:
            self._roster_changed.set()

    async def _conclude_after_losses(self) -> None:
        while True:
            await self._roster_changed.wait()
            self._roster_changed.clear()
            for step in list(self._steps.values()):
                await self._conclude(step)

    async def _conclude(self, step: GatheredStep) -> None:
        is_here = self._steps.get(step.number) is step  # another task may have concluded it
        if not is_here or not step.is_complete(self._lost):
            return
        del self._steps[step.number]
        # Parsing large output takes seconds, and a processor without heartbeats for that long
        # counts as lost. The reported text makes the records manager wait for the record.
        self.progress_text = f"reads the output of step {step.number}"
        finished = await asyncio.to_thread(step.finish, self.context.ranks)
        self.progress_text = ""
        await self._records.send(
            encode(
                StepRecord(
                    *self.header,
                    step=step.number,
                    plan=msgspec.json.encode(finished.plan),
                    problem=finished.problem,
                    reading=msgspec.json.encode(finished.reading) if finished.reading else b"",
                    witnesses=finished.witnesses,
                    ends=finished.ends,
                )
            )
        )
