"""Measures a records manager with the records of a very large run: its throughput, the time from
the last record to the summary, its memory, and whether these grow linearly.

    python -m benchmarks.records_15m [--records 1M,5M,15M] [--folder DIR] [--json]

The records manager is the real service in a separate process with real sockets, files and HTTP API.
This process replaces all other services: it publishes the roster and the states of the run, sends
batches like 50 record processors for 200 workers (the first million requests with their lines), and
then fetches the results. The requests are those of 100,000 users with streaming responses. The
reference for the machine is the time to sort as many doubles in the same run.
"""

import argparse
import asyncio
import json
import secrets
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import numpy as np

from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.topology import Facts, plan
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.options import RunOptions
from benchmarks import machine_use
from benchmarks.records_15m.fake_services import FakeServices
from benchmarks.records_15m.feed import BATCH_ROWS, PROCESSORS, RATE_PER_S, WORKERS, Feed

POLL_S = 0.1
API_PORT = 19_090
TOKEN = secrets.token_urlsafe(32)
MIB = 2**20


class Memory:
    """Peak memory of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.anonymous_mib = 0.0

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            now_mib = machine_use.status_bytes(self._pid, "RssAnon") / MIB
            self.anonymous_mib = max(self.anonymous_mib, now_mib)
            await asyncio.sleep(POLL_S)

    def peak_mib(self) -> float:
        """Includes mapped file pages, which the kernel reclaims when necessary."""
        return machine_use.status_bytes(self._pid, "VmHWM") / MIB


def start(run: LocalRun) -> "subprocess.Popen[bytes]":
    """Start the records manager."""
    services = (Service.RECORDS_MANAGER,)
    environ = run.environment_of("records-manager", services, run.shared_environment())
    # Over HTTP, as results are collected from a cluster.
    del environ["AIPERF_RESULTS_SOCKET"]
    environ |= {"AIPERF_RESULTS_PORT": str(API_PORT), "AIPERF_API_TOKEN": TOKEN}
    command = [*OWN_PROGRAM, "service", "records-manager"]
    return subprocess.Popen(command, env=environ)


async def measure(count: int, folder: Path) -> dict[str, float]:
    """Run with `count` records and return the figures."""
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
        options=RunOptions(),
        run=RunValues(cli_command="records_15m"),
        private=folder / "private",
        artifacts=folder / "artifacts",
        logs=folder / "logs",
    )
    run.write_files()
    feed = Feed(count, run_id=run.run_id, lines=config.artifacts.jsonl_limit)
    services = FakeServices(run, feed)
    manager = start(run)
    memory = Memory(manager.pid)
    try:
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            background = [
                group.create_task(services.listen()),
                group.create_task(memory.watch()),
            ]
            found = await _run(services, feed, folder)
            for task in background:
                task.cancel()
        found["peak_mib"] = round(memory.peak_mib())
        found["peak_anonymous_mib"] = round(memory.anonymous_mib)
    finally:
        manager.kill()
        manager.wait()
        await services.close()
    return found


async def _run(services: FakeServices, feed: Feed, folder: Path) -> dict[str, float]:
    await services.is_there.wait()
    await services.publish_roster()
    await services.publish_state(RunState.PROFILING)
    begin = perf_counter()
    await services.send_batches()
    await services.wait_until_acknowledged(feed.count)
    last = perf_counter()
    await services.publish_accounts()
    await services.publish_state(RunState.DRAINING)
    await services.wait_until_reached(RunState.DRAINING)
    await services.publish_state(RunState.PROCESSING)
    async with ResultsClient(f"http://127.0.0.1:{API_PORT}", token=TOKEN) as client:
        summary = await _summary(client)
        summarised = perf_counter()
        await services.wait_until_reached(RunState.PROCESSING)
        written = perf_counter()
        await services.publish_state(RunState.DONE)
        await services.wait_until_reached(RunState.DONE)
        begin_collect = perf_counter()
        manifest = await client.download_all(folder / "collected")
        collected = perf_counter()
        await client.collected()
    accounts = summary.accounts
    assert summary.value("request_count") == accounts.records == feed.count, accounts
    assert not accounts.violations, accounts
    return {
        "records": feed.count,
        "ingest_records_per_s": round(feed.count / (last - begin)),
        "summary_s": round(summarised - last, 2),
        "artifacts_s": round(written - summarised, 2),
        "collect_s": round(collected - begin_collect, 2),
        "collected_mib": round(sum(entry.size for entry in manifest.files) / MIB),
    }


async def _summary(client: ResultsClient) -> InferenceResult:
    while True:
        with suppress(ApiRefused, ApiUnavailable):
            results = await client.results()
            assert isinstance(results, InferenceResult)
            return results
        await asyncio.sleep(POLL_S)


def reference_s(count: int) -> float:
    """Return the seconds to sort `count` doubles, the minimum cost of one exact percentile."""
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
        print(json.dumps(results, indent=1))
    elif len(results) > 1:
        few, many = results[0], results[-1]
        grown = (many["summary_s"] / few["summary_s"]) / (many["records"] / few["records"])
        print(f"time of the summary per record, most over fewest: {grown:.2f}")


if __name__ == "__main__":
    main()
