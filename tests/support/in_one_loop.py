"""Runs all services of a run in the test's event loop. They use inproc sockets, or TCP as between
pods, where each service has its own sockets and keys."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.messaging.bus import Addresses, Bus
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.topology import SINGLETONS, Facts, Topology, plan
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.host import service_class
from aiperf_svc.services.records_manager import RecordsManager
from tests.support.fake_results import as_json
from tests.support.ports import free_addresses

WAIT_S = 180.0


@dataclass
class Stack:
    """The services under test."""

    services: dict[str, BaseService]
    tasks: dict[str, asyncio.Task[None]]
    topology: Topology
    artifacts: Path

    @property
    def records_manager(self) -> RecordsManager:
        found = self.services[Service.RECORDS_MANAGER.value]
        assert isinstance(found, RecordsManager)
        return found

    async def wait_for_state(self, *states: str) -> None:
        """Wait until the run is in one of the states."""
        async with asyncio.timeout(WAIT_S):
            while (status := self.records_manager.status()).state not in states:
                self._raise_failures()
                await self.records_manager.wait_change(status.number, 0.5)

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Poll until a condition without a notification is true."""
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                self._raise_failures()
                await asyncio.sleep(0.01)

    async def results(self) -> dict[str, Any]:
        """Wait for the end of the run and return the results as stored in their file."""
        async with asyncio.timeout(WAIT_S):
            while not (status := self.records_manager.status()).results_ready:
                self._raise_failures()
                assert status.state != "failed", status.reason
                await self.records_manager.wait_change(status.number, 0.5)
        results = self.records_manager.results()
        assert results is not None
        return as_json(results)

    def _raise_failures(self) -> None:
        for task in self.tasks.values():
            if task.done() and not task.cancelled():
                task.result()


@asynccontextmanager
async def stack(
    config: dict[str, Any],
    folder: Path,
    *,
    workers: int = 1,
    processors: int = 1,
    is_apart: bool = False,
    is_held: bool = False,
) -> AsyncIterator[Stack]:
    """Start a run of `config` against the target of its URL. With `is_apart`, services use TCP as
    between pods. With `is_held`, the run waits for its start command."""
    processes = {"max": workers, "record_processors": processors} | config.get("workers", {})
    checked = BenchmarkConfig.model_validate(config | {"workers": processes, "name": "in-one-loop"})
    facts = Facts(where="local", cores=workers + 1, fd_limit=20_000, worker_requests_per_s=1.0)
    topology = plan(checked, facts)
    addresses, keys = Addresses(f"inproc://{folder.name}"), CurveKeys.make()
    if is_apart:
        ports = free_addresses().ports
        del ports[Port.RAW_DIRECT.name]  # several services bind it
        addresses = Addresses("tcp://127.0.0.1", ports=ports, advertise="127.0.0.1")
    buses = [] if is_apart else [Bus(addresses)]
    names = [(s.value, s) for s in SINGLETONS]
    names += [(f"record-processor-{i}", Service.RECORD_PROCESSOR) for i in range(processors)]
    names += [(f"worker-{i}", Service.WORKER) for i in range(topology.workers)]
    services: dict[str, BaseService] = {}
    for name, service in names:
        if is_apart:
            buses.append(Bus(addresses, curve=keys.of([service])))
        if is_apart or not services:
            await buses[-1].start()
        context = RunContext(
            run_id="test",
            instance=name,
            config=checked,
            topology=topology,
            addresses=addresses,
            artifacts=folder / "artifacts",
            state=folder / "state",
            api_token="token",
            api_port=0,
            run=RunValues(is_held=is_held),
        )
        services[name] = service_class(service)(context, buses[-1])
    tasks = {name: asyncio.create_task(s.run(), name=name) for name, s in services.items()}
    try:
        yield Stack(services, tasks, topology, folder / "artifacts")
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for each in services.values():
            await each.close()
        await asyncio.gather(*(bus.close() for bus in buses))


async def results_of(config: dict[str, Any], folder: Path, **options: Any) -> dict[str, Any]:
    """Run this config in a `stack` and return the results."""
    async with stack(config, folder, **options) as run:
        return await run.results()


@contextmanager
def server(**settings: Any) -> Iterator[RunningMockServer]:
    """Start a mock server that reports its true timings."""
    with running(MockServerConfig(truth=True, **settings)) as mock:
        yield mock


def config(url: str, *, dataset: dict[str, Any] | None = None, **load: Any) -> dict[str, Any]:
    """Return a streaming chat benchmark with this load."""
    return {
        "endpoint": {"url": url, "model": "mock", "streaming": True},
        "load": load,
        "dataset": dataset or {"entries": 50, "input_tokens": {"mean": 20}},
    }


def talks(folder: Path, *turns: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a dataset of `count` conversations with these turns."""
    path = folder / "talks.jsonl"
    talk = {"turns": turns}
    path.write_text(
        "".join(json.dumps({"session_id": f"s{n}"} | talk) + "\n" for n in range(count))
    )
    return {"kind": "multi_turn", "file": str(path)}


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return every line of profile_export.jsonl."""
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


def controller_context(content: dict[str, Any], folder: Path, *, run_id: str) -> RunContext:
    """Return the context for a config, with its folders inside `folder`."""
    config = parse_config(content, "test")
    facts = Facts(where="local", cores=2, fd_limit=20_000, worker_requests_per_s=1000.0)
    return RunContext(
        run_id=run_id,
        instance="system-controller",
        config=config,
        topology=plan(config, facts),
        # A folder of its own, because socket paths must be short.
        addresses=Addresses(f"inproc://{folder.name}"),
        artifacts=folder / "artifacts",
        state=folder / "state",
    )


@asynccontextmanager
async def started_bus(context: RunContext) -> AsyncIterator[Bus]:
    """Run the bus of a context inside the block."""
    bus = Bus(context.addresses)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.close(linger_ms=0)
