"""A record-processor stub: batches of metric rows with the real layout and size."""

from time import time_ns
from typing import Any

import numpy as np
import zmq

from aiperf_svc.adapters.messaging.bus import encode
from aiperf_svc.core.control import control_intervals
from aiperf_svc.core.stats.histogram import delta_of
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.records import MetricBatch, SequenceSpan
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.context import RunContext
from benchmarks.service_stubs.stub import RESPONSE_S, PlainBus, Stub
from benchmarks.service_stubs.worker import WorkerStub

RAW_BATCH_S = 0.05
"""Interval at which a worker hands over its records."""
GAPS = 64
"""Number of further chunks of each batch whose gaps are in the pooled histogram's delta."""


class ProcessorStub(Stub):
    """Sends the ended requests of its workers as batches of rows."""

    service = Service.RECORD_PROCESSOR

    def __init__(self, context: RunContext, bus: PlainBus, name: str) -> None:
        super().__init__(context, bus, name)
        self.records = bus.connect(zmq.PUSH, Port.RECORDS)
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
        """Send a batch when it is due."""
        if now < self.batch_at:
            return
        self.batch_at = now + max(
            RAW_BATCH_S, control_intervals.batch_interval_s(self.context.topology.workers)
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
    """Return records of requests that have just ended."""
    count, end = last - first + 1, time_ns()
    rows = np.zeros(count, dtype=METRIC_DTYPE)
    start = end - round(RESPONSE_S * 1e9)
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
