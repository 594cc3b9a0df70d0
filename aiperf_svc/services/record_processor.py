"""The record processor parses the responses that the workers read, and forwards their metrics."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy.ma  # noqa: F401  # `np.unique` would load it with the first batch, under load
import zmq

from aiperf_svc.adapters.datasets.tokenizers import load_token_counter
from aiperf_svc.adapters.messaging.bus import Bus, encode, receive_each
from aiperf_svc.core.control.control_intervals import batch_interval_s
from aiperf_svc.core.lines.batches import line_count
from aiperf_svc.core.records.assembly import RecordAssembler
from aiperf_svc.core.records.batch_builder import FinishedRequests, MetricParts
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.events import RosterPublished
from aiperf_svc.protocol.messages.records import MetricBatch, RawBatch
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, every
from aiperf_svc.services.context import RunContext

GATHERED_REQUESTS = 1_024
"""Number of finished requests of a worker that are forwarded together. Their rows take 200 KB."""


class RecordProcessor(BaseService):
    """Receives its workers' batches in order, and drops them after forwarding the records."""

    service = Service.RECORD_PROCESSOR

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._records = bus.connect(zmq.PUSH, Port.RECORDS)
        if context.topology.raw_route == "direct":
            self._raw = bus.bind(zmq.ROUTER, Port.RAW_DIRECT, instance=self.id)
            self.address = bus.advertised(self._raw)
        else:
            self._raw = bus.connect(zmq.DEALER, Port.RAW_BACK, identity=self.id.encode())
        self._assembler: RecordAssembler | None = None
        self._ranks: dict[tuple[str, int], int] = {}
        self._lines_left = context.inference.artifacts.jsonl_limit
        self._gathered: dict[tuple[str, int], FinishedRequests] = {}
        """Finished requests that wait to be forwarded with others, by worker and epoch."""
        self._knows_workers = asyncio.Event()
        self.work = {
            RunState.CONFIGURING: self._configure,
            # Records of a worker that is not in the roster yet would be refused.
            RunState.READY: self._wait_for_roster,
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        interval_s = batch_interval_s(self.context.topology.workers)
        return [receive_each(self._raw, self._process), every(interval_s, self._send_gathered)]

    async def _configure(self) -> None:
        config = self.context.inference
        # In a thread: loading a tokenizer of the hub may take long, and heartbeats must continue.
        counter = None
        if config.counting_tokenizer:
            counter = await asyncio.to_thread(load_token_counter, config.tokenizer)
        self._assembler = RecordAssembler(config, counter=counter)

    async def _wait_for_roster(self) -> None:
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
            self.log.warning("ignored records of %s, which is not in the roster", message.sender)
            return
        if message.is_resent:
            # The manager may already have some of these, and accepts or refuses a message as a
            # whole.
            for part in self._assembler.process(
                message, worker_rank=rank, wants_lines=self._lines_left > 0
            ):
                await self._send(part)
            self.batches_read += 1
            return
        finished = self._assembler.parse(message, worker_rank=rank)
        self.batches_read += 1
        worker = message.sender, message.epoch
        gathered = self._gathered.get(worker)
        if gathered is None:
            self._gathered[worker] = gathered = finished
        else:
            gathered.add(finished)
        if len(gathered) >= GATHERED_REQUESTS:
            del self._gathered[worker]
            await self._send_finished(gathered)

    async def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for finished in gathered.values():
            await self._send_finished(finished)

    async def _send_finished(self, finished: FinishedRequests) -> None:
        assert self._assembler is not None
        for part in self._assembler.parts(finished, wants_lines=self._lines_left > 0):
            await self._send(part)

    async def _send(self, parts: MetricParts) -> None:
        self._lines_left -= line_count(parts.rows)
        batch = MetricBatch(
            *self.header,
            spans=parts.spans,
            rows=parts.rows.tobytes(),
            details=parts.details,
            histograms=parts.histograms,
            errors=parts.errors,
            lost=parts.lost,
        )
        await self._records.send(encode(batch))
