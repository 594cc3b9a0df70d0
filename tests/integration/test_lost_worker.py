"""A worker that was declared lost and continues, as after SIGSTOP and SIGCONT."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest_asyncio

from aiperf_svc.adapters.messaging.bus import DOWN, Bus
from aiperf_svc.core.control.roster import SILENCE_NS
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.credits import PhaseStopped
from aiperf_svc.protocol.messages.events import Heartbeat, Member, RosterPublished
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.worker import Worker
from aiperf_svc.services.worker_manager import WorkerManager
from tests.support.in_one_loop import controller_context, started_bus
from tests.support.small_configs import small_benchmark

NAME = "worker-0"


@pytest_asyncio.fixture
async def bus(context: RunContext) -> AsyncIterator[Bus]:
    async with started_bus(context) as made:
        yield made


@pytest_asyncio.fixture
async def context(tmp_path: Path) -> RunContext:
    """Return the context of the worker."""
    made = controller_context(small_benchmark("http://127.0.0.1:1"), tmp_path, run_id="run")
    return replace(made, instance=NAME, epoch=1)


async def test_lost_worker_is_notified_when_it_reappears(context: RunContext, bus: Bus) -> None:
    manager = WorkerManager(context, bus)

    def beat(seen_roster: int) -> None:
        state = RunState.READY
        manager.on_heartbeat(Heartbeat("run", NAME, 1, Service.WORKER, 1, seen_roster, state))

    beat(0)
    await manager._freeze()
    number = manager._roster.number
    beat(number)
    assert manager._unseen() == []
    manager._clock.ns += 10 * SILENCE_NS
    manager._lose_silent()
    assert manager._unseen() == []
    beat(number)
    (lost,) = manager._unseen()
    assert (lost.id, lost.lost) == (NAME, True)
    beat(number + 1)
    assert manager._unseen() == []


async def test_worker_stops_when_it_is_lost(context: RunContext, bus: Bus) -> None:
    worker, stops = Worker(context, bus), list[tuple[PhaseStopped, int]]()
    generator = SimpleNamespace(phase=1, stop=lambda *stop: stops.append(stop))
    worker._generator = cast(Any, generator)
    for number, is_lost in ((1, False), (2, True)):
        member = Member(NAME, Service.WORKER, 1, 0, lost=is_lost)
        roster = RosterPublished("run", "worker-manager", 1, number, True, True, (), (member,))
        worker._dispatch(roster, DOWN)
        assert len(stops) == is_lost
    assert stops == [(PhaseStopped("run", NAME, 1, Phase(1), 0, 0), 0)]
