"""Record processor: parses what the workers read, and passes on numbers."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import zmq

from aiperf_svc.adapters.bus import Bus, encode, receive_each
from aiperf_svc.adapters.tokenizers import load_token_counter
from aiperf_svc.core.gathering import merged
from aiperf_svc.core.pacing import batch_interval_s
from aiperf_svc.core.record_assembly import MetricParts, RecordAssembler
from aiperf_svc.protocol.messages import (
    AnyMessage,
    MetricBatch,
    RawBatch,
    RosterPublished,
    RunState,
    Service,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.services.base import BaseService, every
from aiperf_svc.services.context import RunContext

LEAST_GATHER_S = 0.02
"""A shorter wait than this gathers nothing: a worker's own batches are further apart."""
GATHERED_ROWS = 512
"""Rows of a worker that are sent at once: they make a message of some 100 KB, with lines 1 MB."""


class RecordProcessor(BaseService):
    """Takes the batches of its workers, in order, and forgets them once they are passed on."""

    service = Service.RECORD_PROCESSOR

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._records = bus.connect(zmq.PUSH, bus.addresses.connect(Port.RECORDS))
        if context.topology.raw_route == "direct":
            self._raw = bus.bind(zmq.ROUTER, Port.RAW_DIRECT, instance=self.id)
            self.address = bus.advertised(self._raw)
        else:
            back = bus.addresses.connect(Port.RAW_BACK)
            self._raw = bus.connect(zmq.DEALER, back, identity=self.id.encode())
        self._assembler: RecordAssembler | None = None
        self._ranks: dict[tuple[str, int], int] = {}
        self._lines_left = context.config.artifacts.jsonl_limit
        self._gather_s = batch_interval_s(context.topology.workers)
        self._gathered: dict[str, list[MetricParts]] = {}
        """By worker: what waits to be sent with more of the same."""
        self._knows_workers = asyncio.Event()
        self.work = {
            RunState.CONFIGURING: self._configure,
            # Records of a worker that the roster has not named yet would be turned away.
            RunState.READY: self._meet_workers,
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        gathers = [every(self._gather_s, self._send_gathered)] if self._is_gathering else []
        return [receive_each(self._raw, self._process), *gathers]

    @property
    def _is_gathering(self) -> bool:
        return self._gather_s >= LEAST_GATHER_S

    async def _configure(self) -> None:
        self._assembler = RecordAssembler(
            self.context.config,
            run_id=self.context.run_id,
            processor_id=self.id,
            counter=load_token_counter(self.context.config.tokenizer),
        )

    async def _meet_workers(self) -> None:
        await self._knows_workers.wait()

    def on_roster(self, roster: RosterPublished) -> None:
        if roster.frozen:
            self._knows_workers.set()
        workers = [m for m in roster.members if m.service is Service.WORKER]
        self._ranks = {(m.id, m.epoch): m.rank for m in workers if not m.lost}
        if self._assembler is not None:
            for member in workers:
                if member.lost:
                    self._assembler.drop_worker(member.id)

    async def _process(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id or not isinstance(message, RawBatch):
            return
        rank = self._ranks.get((message.sender, message.epoch))
        if rank is None or self._assembler is None:
            self.log.warning("records of %s, which takes no part", message.sender)
            return
        parts = self._assembler.process(message, worker_rank=rank, wants_lines=self._lines_left > 0)
        for part in parts:
            self._lines_left -= len(part.rows)
        if self._is_gathering and not message.is_resent:
            gathered = self._gathered.setdefault(message.sender, [])
            gathered += parts
            if sum(len(part.rows) for part in gathered) >= GATHERED_ROWS:
                await self._send(merged(self._gathered.pop(message.sender)))
            return
        for part in parts:
            await self._send(part)

    async def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for parts in gathered.values():
            if parts:
                await self._send(merged(parts))

    async def _send(self, parts: MetricParts) -> None:
        batch = MetricBatch(
            *self.header,
            spans=parts.spans,
            rows=parts.rows.tobytes(),
            jsonl=parts.jsonl,
            histograms=parts.histograms,
            errors=parts.errors,
            lost=parts.lost,
        )
        await self._records.send(encode(batch))
