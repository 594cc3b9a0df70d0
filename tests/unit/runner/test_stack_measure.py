"""How a run reacts when part of its stack is lost during the measurement."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.ownership import LeaseKeeper
from aiperf_svc.adapters.cluster.watching.run_losses import Loss
from aiperf_svc.adapters.terminal.screens import Screen
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.parts import PartContext
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import measure
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import to_plan

CONFIG = {
    "endpoint": {"url": "http://target", "model": "m"},
    "load": {"concurrency": 1, "requests": 10},
    "deployment": {"target": {"kind": "mock"}},
}
PLAN = to_plan(BenchmarkConfig.model_validate(CONFIG), stack="s", version="1")
IN_JOBS = {
    **CONFIG,
    "load": {"concurrency": 1, "duration": "1s"},
    "experiment": {"product": {"deployment.target.args": [["a"], ["b"]]}, "fan_out": "jobs"},
}
SUMMARY = {"request_count": {"avg": 10.0}}
OUTPUTS = {"namespace": "n", "resultsToken": "t", "results": {}}


class FakeStackRun:
    """A run that continues until a test ends it, the watch on its stack, and the display."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[dict[str, Any] | None] = asyncio.Future()
        self.losses: list[tuple[Loss, ...]] = []
        self.then: BaseException | None = None
        """How the run ends after all losses were reported. None means with a summary."""
        self.is_over = False
        self.status = None
        self.silence = ""
        self.notes: list[str] = []
        self.watches: tuple[Any, ...] = ()

    # --- as Follower ---

    failure: Any = None
    is_out_of_time = False

    @property
    def display(self) -> Any:
        return self

    async def run(self) -> dict[str, Any] | None:
        watches = [asyncio.ensure_future(watch(self)) for watch in self.watches]
        try:
            await asyncio.wait((self.ended, *watches), return_when=asyncio.FIRST_COMPLETED)
            for each in watches:
                if each.done():
                    each.result()
            return self.ended.result()
        finally:
            for each in (self.ended, *watches):
                each.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    # --- as LeaseKeeper ---

    async def taken(self) -> Any:
        await asyncio.Event().wait()

    # --- as RunWatch ---

    async def next_losses(self) -> tuple[Loss, ...]:
        if self.losses:
            return self.losses.pop(0)
        if self.then is not None:
            self.ended.set_exception(self.then)
        else:
            self.ended.set_result(SUMMARY)
        await asyncio.Event().wait()
        return ()

    # --- as Display ---

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        return None


@pytest.fixture
async def stack_run(monkeypatch: pytest.MonkeyPatch) -> FakeStackRun:
    stack_run = FakeStackRun()

    @contextlib.asynccontextmanager
    async def way(*_: Any, **__: Any) -> AsyncIterator[str]:
        yield "http://127.0.0.1:1"

    def follower(*_: Any, watches: Any, **__: Any) -> FakeStackRun:
        stack_run.watches = watches
        return stack_run

    monkeypatch.setattr(measure, "Follower", follower)
    monkeypatch.setattr(measure, "RunWatch", lambda *_, **__: stack_run)
    monkeypatch.setattr(measure, "open_results", way)
    return stack_run


async def follow(measuring: measure.Measuring) -> RunResult | ExperimentResult | None:
    try:
        return await measuring.follow(deadline_mono_s=None)
    finally:
        await measuring.close()


def measuring(stack_run: FakeStackRun, plan: StackPlan = PLAN) -> measure.Measuring:
    screen = cast(Screen, SimpleNamespace(display=lambda *_: stack_run))
    context = PartContext(Interrupts(), screen)
    keeper = cast(LeaseKeeper, stack_run)
    return measure.Measuring(cast(Cluster, None), OUTPUTS, plan, context, RunOptions(), keeper)


@pytest.mark.parametrize("component", ["", "records-manager"])
@pytest.mark.parametrize("is_over", [False, True])
async def test_lost_namespace_or_results_pod_ends_run(
    stack_run: FakeStackRun, component: str, is_over: bool
) -> None:
    stack_run.losses.append((Loss(component, "it was deleted"),))
    stack_run.is_over = is_over
    with pytest.raises(BenchmarkFailed, match=r"^it was deleted"):
        await follow(measuring(stack_run))
    assert not stack_run.ended.done() or stack_run.ended.cancelled()


@pytest.mark.parametrize("is_over", [False, True])
async def test_restarted_collector_continues_the_experiment(
    stack_run: FakeStackRun, is_over: bool
) -> None:
    stack_run.losses.append((Loss("collector", "pod c was killed"),))
    stack_run.is_over = is_over
    plan = to_plan(parse_benchmark(IN_JOBS, "the test"), stack="s", version="1")
    run = measuring(stack_run, plan)
    assert await follow(run) == SUMMARY
    assert run.failure is None
    line = "pod c was killed: it restarts, and continues with the files in its pod"
    assert stack_run.notes == [line]


async def test_lost_service_fails_run_but_results_come(stack_run: FakeStackRun) -> None:
    stack_run.losses.append((Loss("timing-manager", "pod t was evicted"),))
    stack_run.losses.append((Loss("dataset-manager", "pod d was deleted"),))
    run = measuring(stack_run)
    assert await follow(run) == SUMMARY
    reason = "pod t was evicted; the run cannot continue without it"
    assert str(run.failure) == reason
    assert stack_run.notes[0] == f"{reason}: results so far are collected"


async def test_lost_target_is_noted_and_run_continues(stack_run: FakeStackRun) -> None:
    stack_run.losses.append((Loss("target", "pod x was deleted"),))
    run = measuring(stack_run)
    assert await follow(run) == SUMMARY
    assert run.failure is None
    assert stack_run.notes == ["pod x was deleted: requests fail until the server is back"]


async def test_services_ending_after_run_are_no_losses(stack_run: FakeStackRun) -> None:
    stack_run.losses.append((Loss("timing-manager", "pod t ended"), Loss("target", "pod x ended")))
    stack_run.is_over = True
    run = measuring(stack_run)
    assert await follow(run) == SUMMARY
    assert (run.failure, stack_run.notes) == (None, [])


async def test_silent_api_server_is_blamed_for_silence(stack_run: FakeStackRun) -> None:
    stack_run.then = BenchmarkFailed("the services do not respond: Server disconnected")
    with pytest.raises(BenchmarkFailed, match="Server disconnected"):
        await follow(measuring(stack_run))
    stack_run.ended = asyncio.Future()
    stack_run.silence = "the API server at x has not responded for 91 s"
    with pytest.raises(BenchmarkFailed, match=f"^{stack_run.silence}$"):
        await follow(measuring(stack_run))
