"""Starts the results API: a socket file if the runner is on this machine, HTTP otherwise."""

import asyncio
from importlib import import_module
from typing import Protocol

from aiperf_svc.adapters.results_api.local_socket import LocalResultsServer
from aiperf_svc.adapters.results_api.provider import ResultsProvider
from aiperf_svc.services.context import RunContext


class Serving(Protocol):
    """A running results API."""

    async def close(self) -> None:
        """Stop serving."""
        ...


async def serve_results(provider: ResultsProvider, context: RunContext) -> Serving:
    """Serve the results of `provider` until the returned server is closed. Raises
    EnvironmentProblem."""
    if context.results_socket is not None:
        local = LocalResultsServer(provider)
        await local.listen(context.results_socket)
        return local
    # Importing the HTTP server takes as long as all other imports, so other services do not wait
    # for it.
    http = await asyncio.to_thread(import_module, "aiperf_svc.adapters.results_api.server")
    server: Serving = await http.serve(
        provider,
        token=context.api_token,
        metrics_token=context.metrics_token,
        is_metrics_open=context.config.deployment.monitoring == "annotations",
        # All addresses, of IPv4 and IPv6.
        host="" if context.addresses.is_tcp else "127.0.0.1",
        port=context.api_port,
    )
    return server
