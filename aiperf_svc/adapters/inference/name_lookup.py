"""Looks up the target's name beside the event loop."""

import asyncio
import threading
from contextlib import suppress

from aiperf_svc.adapters.inference import resolved_target
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.load.target_addresses import SocketAddress
from aiperf_svc.domain.errors import ConfigError

Addresses = tuple[SocketAddress, ...]


async def look_up_apart(config: BenchmarkConfig) -> Addresses:
    """Call `resolved_target.look_up` in a thread of its own. Nobody waits for that at the end of
    the process: a resolver that is away takes many seconds. Raises ConfigError."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Addresses] = loop.create_future()

    def tell(found: Addresses | ConfigError) -> None:
        if result.done():
            return  # cancelled
        if isinstance(found, ConfigError):
            result.set_exception(found)
        else:
            result.set_result(found)

    def run() -> None:
        found: Addresses | ConfigError
        try:
            found = resolved_target.look_up(config)
        except ConfigError as error:
            found = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=run, name="name-lookup", daemon=True).start()
    return await result
