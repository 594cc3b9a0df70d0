"""Whole runs against a host name with several addresses, and against one whose addresses change."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_bench import resolver
from tests.support.in_one_loop import WAIT_S, config, results_of, stack
from tests.support.scripted_server import RESPONSE, ScriptedServer


class Replica(ScriptedServer):
    """A server on one address."""

    def __init__(self) -> None:
        super().__init__(self._serve_one)
        self.served = 0
        self.has_served = asyncio.Event()
        """Set after ten requests."""

    async def _serve_one(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.served = number + 1
        if self.served >= 10:
            self.has_served.set()
        await asyncio.sleep(0.005)
        writer.write(RESPONSE)


@asynccontextmanager
async def replicas(*hosts: str) -> AsyncIterator[list[Replica]]:
    """Run servers on these addresses that share one port number."""
    found: list[Replica] = []
    try:
        for host in hosts:
            replica = Replica()
            await replica.start(host, found[0].port if found else 0)
            found.append(replica)
        yield found
    finally:
        for replica in found:
            await replica.stop()


def use_of(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {use["address"]: use for use in summary["aiperf_svc"]["target_addresses"]}


async def test_results_state_the_load_of_each_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    monkeypatch.setattr(socket, "getaddrinfo", resolver(*hosts))
    async with replicas(*hosts) as servers:
        settings = config(f"http://target.test:{servers[0].port}", concurrency=6, requests=120)
        settings["load"]["warmup"] = {"requests": 12}
        summary = await results_of(settings, tmp_path, workers=2)
        uses = use_of(summary)
        assert {host: uses[host]["connections"] for host in hosts} == dict.fromkeys(hosts, 2)
        assert sum(use["requests"] for use in uses.values()) == 120
        assert sum(server.served for server in servers) == 132
        assert min(use["requests"] for use in uses.values()) > 20


async def test_moved_target_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = "127.0.0.2", "127.0.0.3"
    found = [before]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **o: resolver(*found)(*a, **o))
    async with replicas(before) as (old,):
        settings = config(f"http://target.test:{old.port}", concurrency=2, requests=100_000)
        async with stack(settings, tmp_path) as run:
            await asyncio.wait_for(old.has_served.wait(), WAIT_S)
            await old.stop()
            new = Replica()
            await new.start(after, old.port)
            found[:] = [after]
            try:
                await asyncio.wait_for(new.has_served.wait(), WAIT_S)
                run.records_manager.cancel("enough")
                summary = await run.results()
            finally:
                await new.stop()
    uses = use_of(summary)
    assert uses[before]["requests"] >= 10
    assert uses[before]["failures"] > 0
    assert "refused" in uses[before]["error"]
    assert uses[after]["requests"] >= 10
    assert summary["aiperf_svc"]["accounts"]["violations"] == []
