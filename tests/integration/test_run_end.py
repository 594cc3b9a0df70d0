"""When the process of the system controller may end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import zmq

from aiperf_svc.adapters.messaging.bus import DOWN, UP, decode
from aiperf_svc.protocol.messages.events import (
    Heartbeat,
    Member,
    RosterPublished,
    RunStatePublished,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services import records_manager, system_controller
from aiperf_svc.services.context import ExperimentContext, TrialSequence
from aiperf_svc.services.records_manager import RecordsManager
from aiperf_svc.services.system_controller import SystemController
from aiperf_svc.services.worker_manager import WorkerManager
from tests.support.in_one_loop import (
    config,
    controller_context,
    results_of,
    server,
    stack,
    started_bus,
)
from tests.support.small_configs import small_benchmark

CONFIG = small_benchmark("http://127.0.0.1:1")
REPLICAS = (Service.RECORD_PROCESSOR, Service.WORKER)
WAIT_S = 60.0


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[SystemController]:
    """Yield a controller of a run with a worker and a record processor."""
    context = controller_context(CONFIG, tmp_path, run_id="run")
    async with started_bus(context) as bus:
        made = SystemController(context, bus)
        running = asyncio.create_task(made.run())
        members = tuple(Member(s.value, s, 1, 0) for s in REPLICAS)
        made.on_roster(RosterPublished("run", "worker-manager", 1, 1, False, True, (), members))
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def beat(service: Service, reached: RunState, *, error: str = "", seen_state: int = 1) -> Heartbeat:
    return Heartbeat(
        "run", service.value, 1, service=service, seen_state=seen_state, seen_roster=1,
        reached=reached, error=error,
    )  # fmt: skip


def published(epoch: int, number: int, state: RunState) -> RunStatePublished:
    """Return a state of a controller that was started at `epoch`."""
    return RunStatePublished(
        "run", Service.SYSTEM_CONTROLLER.value, epoch, number=number, state=state
    )


async def test_run_ends_when_every_service_has_reported(controller: SystemController) -> None:
    subscriber = controller.bus.connect(zmq.SUB, Port.EVENTS_OUT)
    subscriber.setsockopt(zmq.SUBSCRIBE, UP)
    controller.on_heartbeat(beat(Service.WORKER, RunState.PENDING, error="out of memory"))
    async with asyncio.timeout(WAIT_S):
        while True:
            own = decode((await subscriber.recv_multipart())[1])
            if isinstance(own, Heartbeat) and own.reached is RunState.FAILED:
                break
    controller.on_heartbeat(beat(Service.WORKER, RunState.FAILED))
    assert not controller.finished.is_set()
    controller.on_heartbeat(beat(Service.RECORD_PROCESSOR, RunState.FAILED))
    assert controller.finished.is_set()


async def test_replaced_controller_ends_run_of_the_others(controller: SystemController) -> None:
    service = WorkerManager(controller.context, controller.bus)
    service._dispatch(published(1, 5, RunState.PROFILING), DOWN)
    running = asyncio.create_task(service.run())
    controller.on_heartbeat(beat(Service.WORKER, RunState.READY, seen_state=5))
    async with asyncio.timeout(WAIT_S):
        await service.finished.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert service.state is RunState.FAILED


async def test_silent_worker_manager_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_controller, "mono_ns", partial(next, count(0, 10**9)))
    manager = beat(Service.WORKER_MANAGER, RunState.PENDING)
    # Each heartbeat of the controller comes a second after the previous one.
    states = list[RunState]()
    own = beat(Service.SYSTEM_CONTROLLER, RunState.PENDING)
    context = controller_context(CONFIG, tmp_path, run_id="run")
    async with started_bus(context) as bus:
        made = SystemController(context, bus)
        # Until the roster is frozen, another worker manager may replace a silent one.
        for is_heard, is_frozen in ((True, False), (False, False), (True, True), (False, True)):
            made.roster = RosterPublished("run", "worker-manager", 1, 1, is_frozen, False, (), ())
            for each in [manager] * is_heard + [own] * 29:
                made.on_heartbeat(each)
            states.append(made._machine.state)
    assert states == [RunState.PENDING] * 3 + [RunState.FAILED]
    assert made._machine.reason == "worker-manager was lost; the run cannot continue without it"


async def test_next_trial_waits_for_results_of_failed_one(tmp_path: Path) -> None:
    ended: list[RunState] = []
    sequence = SimpleNamespace(trial_ended=lambda state, *_: ended.append(state))
    context = replace(
        controller_context(CONFIG, tmp_path, run_id="run"),
        experiment=ExperimentContext(sequence=cast(TrialSequence, sequence)),
    )
    services = (Service.WORKER, Service.TIMING_MANAGER, Service.RECORDS_MANAGER)
    members = tuple(Member(s.value, s, 1, 0) for s in services)
    async with started_bus(context) as bus:
        made = SystemController(context, bus)
        made.on_roster(RosterPublished("run", "worker-manager", 1, 1, False, True, (), members))
        made.on_heartbeat(beat(Service.WORKER, RunState.PENDING, error="out of memory"))
        made._check_deadline(RunState.FAILED, system_controller.ENDING_S)
        assert ended == []
        made.on_heartbeat(beat(Service.RECORDS_MANAGER, RunState.FAILED))
        made._check_deadline(RunState.FAILED, system_controller.ENDING_S)
    assert ended == [RunState.FAILED]


@pytest.mark.parametrize(
    ("before", "then", "state"),
    [
        (RunState.PENDING, RunState.CONFIGURING, RunState.CONFIGURING),
        (RunState.PROFILING, RunState.CONFIGURING, RunState.PROFILING),
        (RunState.PROFILING, RunState.FAILED, RunState.FAILED),
        (RunState.DONE, RunState.FAILED, RunState.DONE),
    ],
)
async def test_newer_controller_cannot_repeat_the_run(
    controller: SystemController, before: RunState, then: RunState, state: RunState
) -> None:
    service = WorkerManager(controller.context, controller.bus)
    for message in (published(2, 5, before), published(3, 1, then), published(2, 6, before)):
        service._dispatch(message, DOWN)
    assert service.state is state


async def test_failed_run_ends_every_waiting_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timing manager waits for a worker that never attaches because its server is down."""
    monkeypatch.setattr(system_controller, "ENDING_S", 10 * WAIT_S)
    wanted = config("http://127.0.0.1:1", concurrency=1, requests=1)
    wanted["endpoint"]["wait_for_server"] = "10ms"
    async with stack(wanted, tmp_path) as run, asyncio.timeout(WAIT_S):
        await run.wait_for_state("failed")
        await run.services[Service.SYSTEM_CONTROLLER.value].finished.wait()


async def test_results_that_cannot_be_made_are_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def summarise(*_: object) -> None:
        raise ZeroDivisionError("no time has passed")

    monkeypatch.setattr(records_manager, "summarise", summarise)
    with server(ttft="1ms", tokens=2) as mock:
        wanted = config(mock.url, concurrency=1, requests=1)
        async with stack(wanted, tmp_path) as run, asyncio.timeout(WAIT_S):
            manager = run.records_manager
            while not (status := manager.status()).is_settled:
                await manager.wait_change(status.number, 0.5)
    why = "ZeroDivisionError: no time has passed"
    assert (status.state, status.reason) == ("failed", f"records-manager: {why}")
    assert status.artifact_error == f"the results cannot be made: {why}"


async def test_results_outlive_a_bug_in_telemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_telemetry(*_: object) -> None:
        raise ZeroDivisionError("no pages")

    monkeypatch.setattr(records_manager, "with_telemetry", with_telemetry)
    with server(ttft="1ms", tokens=2) as mock:
        wanted = config(mock.url, concurrency=1, requests=3)
        async with stack(wanted, tmp_path) as run:
            results = await run.results()
            status = run.records_manager.status()
    assert results["request_count"]["avg"] == 3
    assert (tmp_path / "artifacts" / "manifest.json").exists()
    assert status.artifact_error == (
        "the results are without the metrics of servers and GPUs: ZeroDivisionError: no pages"
    )


async def test_reports_of_events_and_replicas_are_awaited_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_waiting = {name: asyncio.Event() for name in ("_await_scaling", "_await_events")}

    def waits_for_the_other(name: str) -> Callable[[RecordsManager], Awaitable[None]]:
        async def wait(self: RecordsManager) -> None:
            is_waiting[name].set()
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*(each.wait() for each in is_waiting.values()))

        return wait

    for name in is_waiting:
        monkeypatch.setattr(RecordsManager, name, waits_for_the_other(name))
    with server(ttft="1ms", tokens=2) as mock:
        await results_of(config(mock.url, concurrency=1, requests=1), tmp_path)
