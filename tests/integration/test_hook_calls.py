"""A hook before a phase, and a run that ends while it is waited for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.services.hook_calls import HookCalls


async def test_a_stop_just_when_the_time_of_a_hook_is_over_is_no_failure() -> None:
    loop, arrived, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    async def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await ended.wait()
        writer.transport.abort()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        hook = {"path": "/start_profile", "before": "load", "timeout": "50ms"}
        config = BenchmarkConfig.model_validate(
            {
                "endpoint": {"url": url, "model": "m", "hooks": [hook]},
                "load": {"concurrency": 1, "requests": 1},
            }
        )
        context: Any = SimpleNamespace(inference=config, run_id="run")
        calls = HookCalls(context)
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, problem: problems.append(problem))
        task = asyncio.create_task(calls.before(Phase.PROFILING, is_first=True))
        await arrived.wait()
        limit = calls._limit
        assert limit is not None
        over = limit.when()
        assert over is not None
        # Both in one turn of the loop, in this order.
        loop.call_at(over + 1e-9, calls.stop)
        try:
            await task
        except BenchmarkFailed:
            pytest.fail("the run was stopped")
        (made,) = calls.made(Phase.PROFILING)
        ended.set()
    assert problems == []
    assert made.problem == "not waited for, because the run was stopped"
