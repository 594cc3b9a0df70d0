"""Resolves the target of a worker: before the load, when it may not be ready yet, and again when
connections fail, because its pods may have moved."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.listeners import may_begin_to_listen, nothing_listens, refuses
from aiperf_svc.adapters.inference.resolved_target import Target, look_up_in_thread, resolve_target
from aiperf_svc.adapters.inference.side_requests import readiness_problem
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.errors import BenchmarkFailed, ConfigError
from aiperf_svc.services.base import mono_ns

ASK_AGAIN_S = 0.5
"""Seconds between two readiness checks."""
LOOKUP_S = 2.0
"""Seconds between lookups of the target's name while connections fail. The interval doubles with
each lookup, because thousands of workers ask one resolver. A period without failures resets it."""
MAX_LOOKUP_S = 30.0


async def find_target(
    config: BenchmarkConfig, *, run_id: str, until_mono_ns: int, note: Callable[[str], None]
) -> Target:
    """Return the target, after waiting until it is ready if the config requires that. Calls `note`
    with the reason of each wait, and with an empty text at the end. Raises ConfigError if its name
    has no address, BenchmarkFailed if the server is not ready in time."""
    wait_ns = config.endpoint.wait_for_server
    while True:
        try:
            target = await asyncio.to_thread(resolve_target, config)
            problem = await readiness_problem(config, target, run_id) if wait_ns else ""
        except ConfigError as error:
            # The name of a pod that does not exist yet has no address.
            if mono_ns() >= until_mono_ns:
                raise
            problem = str(error)
        if not problem:
            note("")
            return target
        if mono_ns() >= until_mono_ns:
            raise BenchmarkFailed(
                f"the server is not ready after {format_duration(wait_ns)} "
                f"(endpoint.wait_for_server): {problem}"
            )
        note(f"waiting for the server: {problem}")
        await asyncio.sleep(ASK_AGAIN_S)


async def check_targets(endpoint: Endpoint, targets: Iterable[Target]) -> None:
    """Fail the run before its load if no server listens at any target. Raises BenchmarkFailed."""
    if may_begin_to_listen(endpoint):
        return
    for target in targets:
        addresses = [(each.family, each.address) for each in target.addresses]
        if not await asyncio.to_thread(refuses, addresses):
            return
    raise nothing_listens(endpoint.first_hops)


async def follow_names(
    clients: Callable[[], Sequence[tuple[InferenceClient, BenchmarkConfig]]], log: logging.Logger
) -> None:
    """Look up the name of each client's target again while connections fail."""
    pause_s = LOOKUP_S
    while True:
        await asyncio.sleep(pause_s)
        failing = [each for each in clients() if each[0].addresses.wants_lookup]
        pause_s = min(2 * pause_s, MAX_LOOKUP_S) if failing else LOOKUP_S
        for client, config in failing:
            await _look_up(client, config, log)


async def _look_up(client: InferenceClient, config: BenchmarkConfig, log: logging.Logger) -> None:
    try:
        found = await look_up_in_thread(config)
    except ConfigError as error:
        log.warning("the target's addresses stay as they are: %s", error)
        return
    before = [address.name for address in client.addresses.in_use]
    client.addresses.replace(found)
    after = [address.name for address in client.addresses.in_use]
    if after != before:
        log.info("the target's addresses are now %s", ", ".join(after))
