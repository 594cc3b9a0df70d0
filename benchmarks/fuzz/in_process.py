"""Fuzzes the client and the record assembly in one process: the code that parses foreign bytes.

Without services and verdict. Each response is read and turned into a record, which is compared with
the known truth about the response. The sanitizers and the tests run this.
"""

import asyncio
from time import time_ns

import numpy as np

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.records.assembly import RecordAssembler
from aiperf_svc.protocol.messages.records import RawBatch
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag, Rows
from benchmarks.fuzz.legal import MODEL
from benchmarks.fuzz.server import serving
from benchmarks.fuzz.trials import TIMEOUT_S, Finding, Trial, compare

POLL_NS = 500_000
HOUSEKEEPING_S = 0.05


def run_in_process(trial: Trial) -> Finding:
    """Send all requests of a trial and compare the records. A timeout is a problem."""
    finding = Finding(trial)
    with serving(trial.reply) as server:
        config = BenchmarkConfig.model_validate(
            trial.config(f"http://127.0.0.1:{server.port}", "unused")
        )
        try:
            rows = asyncio.run(asyncio.wait_for(_Requests(trial, config).run(), TIMEOUT_S))
        except TimeoutError:
            finding.problems.append(f"the requests did not end within {TIMEOUT_S:g} s")
            return finding
    compare(finding, server, {name: rows[name] for name in METRIC_DTYPE.names or ()})
    return finding


class _Requests:
    """Keeps as many requests in flight as the trial has users: each end sends the next."""

    def __init__(self, trial: Trial, config: BenchmarkConfig) -> None:
        self._trial = trial
        self._target = target = resolve_target(config)
        parts = target.request(b'{"model": "%b"}' % MODEL.encode())
        self._prepared = PreparedTurn(*parts, 0, 0)
        self._assembler = RecordAssembler(config)
        self._rows: list[Rows] = []
        self._next = 0
        self._ended = 0
        self._batches = 0
        self._all_ended = asyncio.Event()
        self._wanted = 0
        self._client = InferenceClient(
            target,
            on_end=self._on_end,
            on_timer=lambda _now: None,
            on_batch=self._on_batch,
            poll_every_ns=POLL_NS,
        )

    async def run(self) -> Rows:
        """Run and return all records in the order of their ends."""
        client, loop = self._client, asyncio.get_running_loop()
        loop.add_reader(client.fd, client.run_ready)
        client.poll_often(True)
        try:
            self._wanted = min(self._trial.users, self._trial.responses)
            while not self._all_ended.is_set():
                # The end handler must not send by itself.
                while self._wanted:
                    self._wanted -= 1
                    self._send()
                client.housekeeping()
                client.expire()
                await asyncio.sleep(0 if self._wanted else HOUSEKEEPING_S / 10)
            client.flush()
        finally:
            loop.remove_reader(client.fd)
            client.close()
        return np.concatenate(self._rows)

    def _send(self) -> None:
        index, self._next = self._next, self._next + 1
        flags = int(Flag.LAST_TURN) | (int(Flag.STREAMED) if self._trial.is_streaming else 0)
        prefix = b"00000000-0000-8100-8000-"
        self._client.send(Request(self._prepared, prefix, 1, index, time_ns(), flags))

    def _on_end(self, _request: Request, _outcome: int) -> None:
        self._ended += 1
        if self._next + self._wanted < self._trial.responses:
            self._wanted += 1
        elif self._ended == self._trial.responses:
            self._all_ended.set()

    def _on_batch(self, fragments: bytes, reads: bytes, bodies: bytes, _last_seq: int) -> None:
        self._batches += 1
        batch = RawBatch(
            "fuzz",
            "worker-0",
            1,
            number=self._batches,
            fragments=fragments,
            reads=reads,
            bodies=bodies,
        )
        parts = self._assembler.process(batch, worker_rank=0, wants_lines=True)
        self._rows += [part.rows for part in parts]
