"""A hook before a phase, and a run that ends while the hook is awaited."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from aiperf_svc.adapters.results_api.run_api import Start
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.timing_manager import HookCalls
from benchmarks.stream_server import stream_server
from tests.support.in_one_loop import WAIT_S, config, stack
from tests.support.scripted_server import served
from tests.support.small_configs import small_config


async def test_stop_at_a_hook_timeout_is_no_failure() -> None:
    loop, arrived, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    async def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await ended.wait()
        writer.transport.abort()

    async with stream_server(take) as port:
        url = f"http://127.0.0.1:{port}"
        hook = {"path": "/start_profile", "before": "load", "timeout": "1h"}
        config = small_config(url, endpoint={"hooks": [hook]})
        context: Any = SimpleNamespace(inference=config, run_id="run")
        calls = HookCalls(context)
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, problem: problems.append(problem))
        task = asyncio.create_task(calls.before(Phase.PROFILING, is_first=True))
        await arrived.wait()
        limit = calls._limit
        assert limit is not None
        over = loop.time() + 0.05
        limit.reschedule(over)
        # Both happen in one turn of the event loop, in this order.
        loop.call_at(over + 1e-9, calls.stop)
        try:
            await task
        except BenchmarkFailed:
            pytest.fail("the run was stopped")
        (made,) = calls.made(Phase.PROFILING)
        ended.set()
    assert problems == []
    assert made.problem == "not waited for, because the run was stopped"


CHAT = "/v1/chat/completions"
MODEL_RESPONSE = {
    "choices": [{"index": 0, "message": {"content": "word"}, "finish_reason": "stop"}]
}


class Server:
    """Records the paths of requests in the order of their responses."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.goes_on, self.was_called = asyncio.Event(), asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":  # a search for a metrics page
            raise web.HTTPNotFound
        if request.path != CHAT:
            self.was_called.set()
            await self.goes_on.wait()
        self.log.append(request.path)
        return web.json_response(MODEL_RESPONSE)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with served("/{path:.*}", found.handle) as found.url:
        yield found


def profiled(server: Server, **load: Any) -> dict[str, Any]:
    made = config(server.url, concurrency=1, requests=3, **load)
    return made | {"endpoint": made["endpoint"] | {"streaming": False, "server_profiler": True}}


async def test_held_run_is_ready_after_its_first_hooks(server: Server, tmp_path: Path) -> None:
    async with stack(profiled(server), tmp_path, is_held=True) as run:
        await asyncio.wait_for(server.was_called.wait(), WAIT_S)
        assert run.records_manager.status().state == "configuring"
        server.goes_on.set()
        await run.wait_for_state("ready")
        assert server.log == ["/start_profile"]
        run.records_manager.handle_message(Start(time_ns()))
        summary = await run.results()
    assert server.log == ["/start_profile", *[CHAT] * 3, "/stop_profile"]
    assert [call["problem"] for call in summary["aiperf_svc"]["hooks"]] == ["", ""]


async def test_held_run_calls_hooks_between_phases(server: Server, tmp_path: Path) -> None:
    server.goes_on.set()
    settings = profiled(server, warmup={"requests": 2})
    async with stack(settings, tmp_path, is_held=True) as run:
        await run.wait_for_state("ready")
        assert server.log == []
        run.records_manager.handle_message(Start(time_ns()))
        await run.results()
    assert server.log == [*[CHAT] * 2, "/start_profile", *[CHAT] * 3, "/stop_profile"]


async def test_cancelled_held_run_stops_the_profiler(server: Server, tmp_path: Path) -> None:
    server.goes_on.set()
    async with stack(profiled(server), tmp_path, is_held=True) as run:
        await run.wait_for_state("ready")
        run.records_manager.cancel("enough")
        await run.wait_for_state("cancelled")
        await run.services[Service.TIMING_MANAGER.value].finished.wait()
    assert server.log == ["/start_profile", "/stop_profile"]
