"""A records manager under the records of a very large run: how fast it takes them, how soon after
the last one the summary is there, how much memory that needs, and whether all of it grows linearly.

    python benchmarks/records_15m.py [--records 1M,5M,15M] [--folder DIR] [--json]

The records manager is the real service in a process of its own, with its real sockets, files and
HTTP API. This process plays everybody else: it publishes the roster and the states of the run,
sends batches as 50 record processors would for 200 workers (the first million requests with their
lines), and then fetches the results. The requests are those of 100,000 users who stream. As a
reference for the machine, the time to sort as many doubles is taken in the same run.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import zmq

from aiperf_svc.adapters.bus import DOWN, UP, Addresses, Bus, decode, encode
from aiperf_svc.adapters.results_client import ApiRefused, ApiUnavailable, ResultsClient
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.core.histogram import delta_of
from aiperf_svc.core.jsonl_lines import LineRenderer
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.plan.topology import Facts, plan
from aiperf_svc.protocol.messages import (
    Heartbeat,
    Member,
    MetricBatch,
    RecordsAcknowledged,
    RosterPublished,
    RunState,
    RunStatePublished,
    SequenceSpan,
    Service,
    WorkerCounts,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag, Rows
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.options import RunOptions

WORKERS, PROCESSORS = 200, 50
BATCH_ROWS = 250
TEMPLATES = 40
"""Different batches; the times of each are moved to where they belong."""
START_WALL_NS = 1_795_227_878_000_000_000
RATE_PER_S = 50_000
"""15 million requests in five minutes."""
LOOK_S = 0.1
API_PORT = 19_090


def template(seed: int) -> Rows:
    """One worker's requests that ended within a moment; times are relative to the batch's."""
    random = np.random.default_rng(seed)
    ms = 10**6
    rows = np.zeros(BATCH_ROWS, dtype=METRIC_DTYPE)
    end = np.sort(random.integers(0, 1000 * ms, BATCH_ROWS))
    ttft = np.rint(random.lognormal(np.log(300 * ms), 0.4, BATCH_ROWS)).astype(np.int64)
    tokens = random.integers(20, 60, BATCH_ROWS)
    decode_ns = np.rint(random.normal(40, 4, BATCH_ROWS) * ms).astype(np.int64) * (tokens - 1)
    start = end - decode_ns - ttft
    lag = np.rint(random.exponential(0.05 * ms, BATCH_ROWS)).astype(np.int64)
    columns = {
        "due_wall_ns": start - lag,
        "start_wall_ns": start,
        "sent_wall_ns": start + 20_000,
        "ack_wall_ns": start + ttft,
        "first_token_wall_ns": start + ttft,
        "first_output_wall_ns": start + ttft,
        "second_token_wall_ns": start + ttft + decode_ns // (tokens - 1),
        "last_token_wall_ns": end,
        "end_wall_ns": end,
        "receive_lag_ns": lag,
        "ttft_uncertainty_ns": np.where(random.random(BATCH_ROWS) < 0.02, 30_000, 0),
        "bytes_out": 1800,
        "bytes_in": 190 * tokens,
        "entry": random.integers(0, 1000, BATCH_ROWS),
        "chunks": tokens,
        "reads": tokens,
        "input_tokens": 550,
        "output_tokens": tokens,
        "reasoning_tokens": -1,
        "usage_prompt_tokens": 540,
        "usage_completion_tokens": tokens,
        "status": 200,
        "flags": Flag.STREAMED | Flag.REUSED | Flag.LAST_TURN,
        "phase": Phase.PROFILING,
        "outcome": Outcome.COMPLETED,
    }
    for name, values in columns.items():
        rows[name] = values
    return rows


class Feed:
    """Batches of `count` requests, worker after worker."""

    def __init__(self, count: int, *, run_id: str, lines: int) -> None:
        self.count = count
        self._run_id = run_id
        self._lines = lines
        """Requests that come with their line."""
        self._templates = [template(seed) for seed in range(TEMPLATES)]
        random = np.random.default_rng(0)
        gaps = np.rint(random.normal(40e6, 4e6, BATCH_ROWS * 39)).astype(np.int64)
        self._gaps = (delta_of(gaps, phase=Phase.PROFILING, tag="inter_chunk_latency"),)
        self._text = self._rendered()
        self.sent = [0] * WORKERS

    def _rendered(self) -> list[bytes]:
        renderer = LineRenderer(
            run_id=self._run_id, processor_id="record-processor-0", has_warmup=False
        )
        return [
            renderer.render(
                _moved(rows, START_WALL_NS),
                worker_id="worker-0",
                gaps_ns=[np.full(n - 1, 40_000_000) for n in rows["chunks"].tolist()],
                messages=[""] * len(rows),
            )
            for rows in self._templates[:4]
        ]

    def frames(self) -> Iterator[bytes]:
        """Encoded batches."""
        for number in range(self.count // BATCH_ROWS):
            worker = number % WORKERS
            rows = self._templates[number % TEMPLATES].copy()
            done = number * BATCH_ROWS
            rows = _moved(rows, START_WALL_NS + done * 10**9 // RATE_PER_S)
            first = self.sent[worker] + 1
            self.sent[worker] += BATCH_ROWS
            rows["seq"] = np.arange(first, first + BATCH_ROWS)
            rows["index"] = np.arange(done, done + BATCH_ROWS)
            rows["worker"] = worker
            yield encode(
                MetricBatch(
                    self._run_id,
                    f"record-processor-{worker % PROCESSORS}",
                    1,
                    spans=(SequenceSpan(f"worker-{worker}", 1, first, self.sent[worker]),),
                    rows=rows.tobytes(),
                    jsonl=self._text[number % len(self._text)] if done < self._lines else b"",
                    histograms=self._gaps,
                )
            )


_TIMES = tuple(name for name in METRIC_DTYPE.names or () if name.endswith("_wall_ns"))


def _moved(rows: Rows, begin_wall_ns: int) -> Rows:
    moved = rows.copy()
    for name in _TIMES:
        moved[name] += begin_wall_ns
    return moved


class Everybody:
    """All services but the records manager."""

    def __init__(self, run: LocalRun, feed: Feed) -> None:
        self._run, self._feed = run, feed
        self._bus = Bus(Addresses(f"ipc://{run.private}"))
        self._down = self._bus.bind(zmq.PUB, Port.EVENTS_OUT)
        self._up = self._bus.bind(zmq.SUB, Port.EVENTS_IN)
        self._up.setsockopt(zmq.SUBSCRIBE, b"")
        self._number = 0
        self.reached = RunState.PENDING
        self.is_there = asyncio.Event()
        self.changed = asyncio.Event()
        self.acknowledged = 0

    async def listen(self) -> None:
        """What the records manager says, until cancelled."""
        while True:
            _, data = await self._up.recv_multipart()
            message = decode(data)
            if isinstance(message, Heartbeat):
                assert not message.error, message.error
                self.reached = message.reached
                self.is_there.set()
            elif isinstance(message, RecordsAcknowledged):
                self.acknowledged = sum(message.highest.values())
            self.changed.set()

    async def wait_until_acknowledged(self, count: int) -> None:
        """Until that many records are safe."""
        while self.acknowledged < count:
            self.changed.clear()
            await self.changed.wait()

    async def send_batches(self) -> None:
        """All of them, as fast as they are taken."""
        out = self._bus.connect(zmq.PUSH, self._bus.addresses.connect(Port.RECORDS))
        for frame in self._feed.frames():
            await out.send(frame)

    async def publish_roster(self) -> None:
        """Who takes part."""
        members = [
            Member(f"worker-{i}", Service.WORKER, 1, i, processor="record-processor-0")
            for i in range(WORKERS)
        ]
        await self._publish(
            DOWN,
            RosterPublished(
                *self._header("worker-manager"),
                number=1,
                frozen=True,
                complete=True,
                missing=(),
                members=tuple(members),
            ),
        )

    async def publish_accounts(self) -> None:
        """What the workers sent, and when the timing manager let them."""
        end = START_WALL_NS + (self._feed.count // RATE_PER_S + 1) * 10**9
        phase = {"start_wall_ns": START_WALL_NS, "stop_wall_ns": end, "ramp_ns": 0}
        phases = {"1": {**phase, "granted": self._feed.count}}
        await self._beat(Service.TIMING_MANAGER, "timing-manager", json.dumps({"phases": phases}))
        for i, sent in enumerate(self._feed.sent):
            counts = WorkerCounts(
                Phase.PROFILING, granted=sent, completed=sent, requests_sent=sent, last_seq=sent
            )
            await self._beat(Service.WORKER, f"worker-{i}", counts=(counts,))

    async def publish_state(self, state: RunState) -> None:
        """Where the run is."""
        self._number += 1
        message = RunStatePublished(
            *self._header("system-controller"), number=self._number, state=state
        )
        await self._publish(DOWN, message)

    async def close(self) -> None:
        """End."""
        await self._bus.close()

    def _header(self, name: str) -> tuple[str, str, int]:
        return self._run.run_id, name, 1

    async def _beat(
        self, service: Service, name: str, detail: str = "", counts: tuple[WorkerCounts, ...] = ()
    ) -> None:
        beat = Heartbeat(
            *self._header(name),
            service=service,
            seen_state=self._number,
            seen_roster=1,
            reached=RunState.DRAINING,
            counts=counts,
            detail=detail.encode(),
        )
        await self._publish(UP, beat)

    async def _publish(self, topic: bytes, message: Any) -> None:
        await self._down.send_multipart([topic, encode(message)])


class Memory:
    """The most that a process has had."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self.anonymous_mib = 0.0

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.anonymous_mib = max(self.anonymous_mib, self._read("RssAnon"))
            await asyncio.sleep(LOOK_S)

    def peak_mib(self) -> float:
        """With the pages of mapped files, which the kernel takes back when it needs them."""
        return self._read("VmHWM")

    def _read(self, name: str) -> float:
        with suppress(OSError):
            found = re.search(rf"{name}:\s+(\d+) kB", self._status.read_text())
            return int(found[1]) / 1024 if found else 0.0
        return 0.0


def start(run: LocalRun) -> "subprocess.Popen[bytes]":
    """The records manager."""
    services = (Service.RECORDS_MANAGER,)
    environ = run.environment_of("records-manager", services, run.shared_environment())
    environ["AIPERF_RESULTS_PORT"] = str(API_PORT)
    command = [sys.executable, "-m", "aiperf_svc", "service", "records-manager"]
    return subprocess.Popen(command, env=environ)


async def measure(count: int, folder: Path) -> dict[str, float]:
    """One run of `count` records."""
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://127.0.0.1:9", "model": "m", "streaming": True},
            "load": {"concurrency": 100_000, "duration": f"{count // RATE_PER_S + 1}s"},
            "workers": {"max": WORKERS, "record_processors": PROCESSORS},
        }
    )
    for name in ("private", "artifacts", "logs"):
        (folder / name).mkdir()
    run = LocalRun(
        config=config,
        topology=plan(config, Facts(where="local", cores=2, fd_limit=20_000)),
        options=RunOptions(cli_command="records_15m"),
        private=folder / "private",
        artifacts=folder / "artifacts",
        logs=folder / "logs",
    )
    run.write_files()
    feed = Feed(count, run_id=run.run_id, lines=config.artifacts.jsonl_limit)
    everybody = Everybody(run, feed)
    manager = start(run)
    memory = Memory(manager.pid)
    try:
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            background = [
                group.create_task(everybody.listen()),
                group.create_task(memory.watch()),
            ]
            found = await _play(everybody, feed, folder, run.token)
            for task in background:
                task.cancel()
        found["peak_mib"] = round(memory.peak_mib())
        found["peak_anonymous_mib"] = round(memory.anonymous_mib)
    finally:
        manager.kill()
        manager.wait()
        await everybody.close()
    return found


async def _play(everybody: Everybody, feed: Feed, folder: Path, token: str) -> dict[str, float]:
    await everybody.is_there.wait()
    await everybody.publish_roster()
    await everybody.publish_state(RunState.PROFILING)
    begin = perf_counter()
    await everybody.send_batches()
    await everybody.wait_until_acknowledged(feed.count)
    last = perf_counter()
    await everybody.publish_accounts()
    await everybody.publish_state(RunState.DRAINING)
    await _until(everybody, RunState.DRAINING)
    await everybody.publish_state(RunState.PROCESSING)
    async with ResultsClient(f"http://127.0.0.1:{API_PORT}", token=token) as client:
        summary = await _summary(client)
        summarised = perf_counter()
        await _until(everybody, RunState.PROCESSING)
        written = perf_counter()
        await everybody.publish_state(RunState.DONE)
        await _until(everybody, RunState.DONE)
        begin_collect = perf_counter()
        manifest = await client.download_all(folder / "collected")
        collected = perf_counter()
        await client.collected()
    accounts = summary["aiperf_svc"]["accounts"]
    assert summary["request_count"]["avg"] == accounts["records"] == feed.count, accounts
    assert accounts["violations"] == [], accounts
    return {
        "records": feed.count,
        "ingest_records_per_s": round(feed.count / (last - begin)),
        "summary_s": round(summarised - last, 2),
        "artifacts_s": round(written - summarised, 2),
        "collect_s": round(collected - begin_collect, 2),
        "collected_mib": round(sum(entry.size for entry in manifest.files) / 2**20),
    }


async def _summary(client: ResultsClient) -> dict[str, Any]:
    while True:
        with suppress(ApiRefused, ApiUnavailable):
            return await client.summary()
        await asyncio.sleep(LOOK_S)


async def _until(everybody: Everybody, state: RunState) -> None:
    while everybody.reached is not state:
        everybody.changed.clear()
        await everybody.changed.wait()


def reference_s(count: int) -> float:
    """Seconds to sort `count` doubles: what one exact percentile costs at least."""
    values = np.random.default_rng(0).random(count)
    begin = perf_counter()
    values.sort()
    return perf_counter() - begin


def _counts(text: str) -> list[int]:
    try:
        return [
            int(float(part.removesuffix("M")) * (10**6 if part.endswith("M") else 1))
            // BATCH_ROWS
            * BATCH_ROWS
            for part in text.split(",")
        ]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers such as 1M,5M,15M") from None


def main() -> None:
    """Measure each size and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=_counts, default=_counts("1M,5M,15M"))
    arguments.add_argument("--folder", help="on whose disk it works; 10 GB for 15 million records")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    results = []
    for count in options.records:
        with tempfile.TemporaryDirectory(prefix="aiperf-records-", dir=options.folder) as scratch:
            found = asyncio.run(measure(count, Path(scratch)))
        found["sort_s"] = round(reference_s(count), 3)
        found["summary_sorts"] = round(found["summary_s"] / found["sort_s"], 1)
        results.append(found)
        if not options.json:
            print("  ".join(f"{name} {value:,}" for name, value in found.items()), flush=True)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(results), indent=1).decode())
    elif len(results) > 1:
        few, many = results[0], results[-1]
        grown = (many["summary_s"] / few["summary_s"]) / (many["records"] / few["records"])
        print(f"time of the summary per record, most over fewest: {grown:.2f}")


if __name__ == "__main__":
    main()
