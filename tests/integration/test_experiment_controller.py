"""The controller of an experiment publishes trials and continues after a restart, with or without
the file of ended trials. The results describe the ended trials."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import zmq

from aiperf_svc.adapters.messaging.bus import TRIAL, decode
from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.core.experiments.machine import ExperimentMachine, PlannedTrials
from aiperf_svc.core.experiments.trials import plan_trials
from aiperf_svc.protocol.messages.events import TrialPublished
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.services.experiment_results import ExperimentResults
from aiperf_svc.services.trials import LOST_PROGRESS, ExperimentController, TrialFollower
from tests.support.fake_results_api import Provider, make_status
from tests.support.in_one_loop import controller_context, started_bus

CONFIG = {
    "endpoint": {"url": "http://127.0.0.1:1", "model": "mock"},
    "load": {"requests": 1},
    "experiment": {"product": {"load.concurrency": [1, 2, 4]}},
}


@asynccontextmanager
async def controller(
    folder: Path,
) -> AsyncIterator[tuple[ExperimentController, zmq.asyncio.Socket]]:
    """Yield a controller that publishes, and a subscribed socket."""
    context = controller_context(CONFIG, folder, run_id="0123456789ab")
    assert context.config.experiment is not None
    async with started_bus(context) as bus:
        Proxies(bus).start()
        subscriber = bus.connect(zmq.SUB, Port.EVENTS_OUT)
        subscriber.setsockopt(zmq.SUBSCRIBE, TRIAL)
        machine = ExperimentMachine(
            PlannedTrials(plan_trials(context.config.experiment, 0)), on_failure="continue"
        )
        made = ExperimentController(context, bus, machine)
        running = asyncio.create_task(made.run())
        try:
            yield made, subscriber
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def next_trial(
    subscriber: zmq.asyncio.Socket, after: TrialPublished | None
) -> TrialPublished:
    while True:
        _, data = await asyncio.wait_for(subscriber.recv_multipart(), 60)
        message = decode(data)
        assert isinstance(message, TrialPublished)
        if after is None or (message.serial, message.is_over) > (after.serial, after.is_over):
            return message


async def test_controller_publishes_trials_in_turn_and_the_end(tmp_path: Path) -> None:
    async with controller(tmp_path) as (made, subscriber):
        message, seen = None, []
        for _ in range(3):
            message = await next_trial(subscriber, message)
            seen.append((message.serial, message.parameters["load.concurrency"], message.total))
            made.trial_ended(RunState.DONE, "", None)
        last = await next_trial(subscriber, message)
    assert seen == [(1, 1, 3), (2, 2, 3), (3, 4, 3)]
    assert (last.is_over, last.state) == (True, RunState.DONE)


async def test_restart_fails_the_current_trial_and_continues(tmp_path: Path) -> None:
    async with controller(tmp_path) as (made, subscriber):
        first = await next_trial(subscriber, None)
        made.trial_ended(RunState.DONE, "", None)
        assert (await next_trial(subscriber, first)).number == 2
    async with controller(tmp_path) as (_, subscriber):
        message = await next_trial(subscriber, None)
    assert (message.serial, message.number) == (3, 3)


async def test_a_stop_between_two_trials_is_the_end(tmp_path: Path) -> None:
    async with controller(tmp_path) as (made, subscriber):
        message = await next_trial(subscriber, None)
        made.cancel("enough")
        made.trial_ended(RunState.DONE, "", None)
        last = await next_trial(subscriber, message)
    assert (last.is_over, last.state, last.reason) == (True, RunState.CANCELLED, "enough")


def published(epoch: int, serial: int) -> TrialPublished:
    """Return a trial of a controller that was started at `epoch`."""
    return TrialPublished(
        "run", "system-controller", epoch,
        serial=serial, number=serial, parameters={}, repetition=1, attempt=1, total=9,
    )  # fmt: skip


async def test_controller_that_forgot_trials_ends_the_experiment(tmp_path: Path) -> None:
    context = controller_context(CONFIG, tmp_path, run_id="run")
    async with started_bus(context) as bus:
        follower = TrialFollower("run", bus)
        current = published(2, 4)
        for message in (published(1, 3), current, published(1, 2)):
            follower._take(message, TRIAL)
        assert follower.latest == current
        for message in (published(3, 1), published(3, 5)):
            follower._take(message, TRIAL)
            last = await follower.after(current)
            assert (last.serial, last.is_over) == (4, True)
            assert (last.state, last.reason) == (RunState.FAILED, LOST_PROGRESS)


async def test_missing_files_of_a_trial_are_reported(tmp_path: Path) -> None:
    context = controller_context(CONFIG, tmp_path, run_id="run")
    results = ExperimentResults(replace(context, api_port=0))
    ends = (
        (RunState.DONE, "No space left on device"),
        (RunState.FAILED, "the results cannot be made"),
        (RunState.DONE, ""),
    )
    try:
        for serial, (state, problem) in enumerate(ends, 1):
            await results.set_trial(published(1, serial))
            await results.set_results(Provider(tmp_path, make_status(artifact_error=problem)))
            await results.add(state, "", None)
        assert results.status().artifact_error == "trial 1: No space left on device"
    finally:
        await results.close()
