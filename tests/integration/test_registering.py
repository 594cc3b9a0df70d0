"""Behaviour of a service until the roster contains it."""

import asyncio
from pathlib import Path

import pytest

from aiperf_svc.adapters.messaging.bus import Bus
from aiperf_svc.services import base
from aiperf_svc.services.system_controller import SystemController
from tests.support.in_one_loop import controller_context
from tests.support.small_configs import small_benchmark

CONFIG = small_benchmark("http://127.0.0.1:1")


async def test_lost_first_heartbeat_costs_milliseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, has_waited = list[float](), asyncio.Event()

    async def wait(_event: asyncio.Event, seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == 12:
            has_waited.set()
            await asyncio.Event().wait()
        return False

    monkeypatch.setattr(base, "is_set_within", wait)
    context = controller_context(CONFIG, tmp_path, run_id="run")
    bus = Bus(context.addresses)
    await bus.start()
    # Its tasks do not run, so its messages are not received.
    sending = asyncio.create_task(SystemController(context, bus)._send_heartbeats())
    await has_waited.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await bus.close(linger_ms=0)
    assert waited[:3] == pytest.approx([0.02, 0.03, 0.045])
    assert waited[-1] == base.HEARTBEAT_S
