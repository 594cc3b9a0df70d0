"""The HTTP API of the records manager."""

from typing import Any

import msgspec
from aiohttp import web


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The run as it is now."""

    number: int
    state: str
    reason: str
    phase: str
    is_cancelling: bool
    elapsed_s: float
    phase_elapsed_s: float
    requested_requests: int | None
    requested_duration_s: float | None
    completed: int
    errored: int
    cancelled: int
    in_flight: int
    requests_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    latency_p50_ms: float | None
    workers: int
    workers_lost: int
    record_processors: int
    dataset: dict[str, Any]
    message: str
    results_ready: bool
    artifact_error: str
    verdict: str | None


class ResultsServer:
    """A running API."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


async def serve(provider: Any, *, token: str, fd: int | None, host: str, port: int) -> ResultsServer:
    """Start the API."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    return ResultsServer(runner)
