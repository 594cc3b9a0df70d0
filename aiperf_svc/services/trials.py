"""Takes a process from trial to trial of an experiment.

A process does its part in a trial with service objects made for it, and makes others for the next:
nothing of a trial can reach the one after it but what is named in `Lasting`. The process itself
stays, with everything that it has imported and loaded.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import Any

import zmq

from aiperf_svc.adapters.host.memory import use_one_heap
from aiperf_svc.adapters.messaging.bus import TRIAL, Bus, receive_each
from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.config.experiment import MOST_TRIALS
from aiperf_svc.core.experiments.criteria import trial_result
from aiperf_svc.core.experiments.machine import ExperimentMachine, Finding, PlannedTrials, Strategy
from aiperf_svc.core.experiments.search_trials import SearchTrials, search_machine
from aiperf_svc.core.experiments.trials import TRIALS, folder_of, plan_trials
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.events import TrialPublished
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.context import RunContext, make_bus
from aiperf_svc.services.experiment import ExperimentController
from aiperf_svc.services.experiment_results import ExperimentResults, finished_trials, trial_of
from aiperf_svc.services.lasting import Lasting
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.trials import trial_config

RUN_ID_LENGTH = 8
"""Characters of the experiment's run id that are in those of its trials."""


class TrialFollower:
    """Knows the trial that is on."""

    def __init__(self, run_id: str, bus: Bus) -> None:
        self._run_id = run_id
        self._subscriber = bus.connect(zmq.SUB, Port.EVENTS_OUT)
        self._subscriber.setsockopt(zmq.SUBSCRIBE, TRIAL)
        self._changed = asyncio.Event()
        self.latest: TrialPublished | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        await receive_each(self._subscriber, self._take)

    def _take(self, message: AnyMessage, _topic: bytes) -> None:
        if not isinstance(message, TrialPublished) or message.run_id != self._run_id:
            return
        if self.latest is None or _place(message) > _place(self.latest):
            self.latest = message
            self._changed.set()
            self._changed = asyncio.Event()

    async def after(self, current: TrialPublished | None) -> TrialPublished:
        """Wait for what follows `current`: another trial, or the end of the experiment."""
        while self.latest is None or (current and _place(self.latest) <= _place(current)):
            await self._changed.wait()
        return self.latest


def _place(message: TrialPublished) -> tuple[int, bool]:
    return message.serial, message.is_over


@dataclass(kw_only=True)
class Trials:
    """What takes a process from one trial to the next."""

    follower: TrialFollower
    lasting: Lasting = field(default_factory=Lasting)
    results: ExperimentResults | None = None
    """In the process of the records manager."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """What runs as long as this; none of it ends by itself."""


@asynccontextmanager
async def following_trials(context: RunContext, names: Sequence[Service]) -> AsyncIterator[Trials]:
    """Follow the trials in a process of these services. Raises EnvironmentProblem."""
    if Service.RECORDS_MANAGER in names:
        use_one_heap()
    bus = make_bus(context)
    await bus.start()
    trials = Trials(follower=TrialFollower(context.run_id, bus))
    lasting = trials.lasting
    try:
        trials.tasks.append(asyncio.create_task(trials.follower.run(), name="follow the trials"))
        if Service.RECORDS_MANAGER in names:
            lasting.results = trials.results = ExperimentResults(context)
        if Service.SYSTEM_CONTROLLER in names:
            lasting.proxies = Proxies(bus)
            lasting.proxies.start()
            lasting.sequence = sequence = ExperimentController(context, bus, _machine(context))
            trials.tasks.append(asyncio.create_task(sequence.run(), name="experiment"))
        yield trials
    finally:
        for task in trials.tasks:
            task.cancel()
        await asyncio.gather(*trials.tasks, return_exceptions=True)
        if trials.results is not None:
            await trials.results.close()
        await bus.close()


def _machine(context: RunContext) -> ExperimentMachine:
    experiment = context.config.experiment
    assert experiment is not None
    ended = finished_trials(context)
    trials = plan_trials(experiment, context.config.random_seed)
    finished = {each.trial.number for each in ended}
    strategy: Strategy = PlannedTrials(trials, finished=finished, total=experiment.size)
    if experiment.search is not None:
        strategy = SearchTrials(search_machine(context.inference))
        for each in ended:
            if strategy.next() != each.trial:
                break  # What follows was found by another way.
            assert isinstance(each.results, InferenceResult)
            result = trial_result(each.results, experiment.search)
            strategy.add(each.trial, Finding(each.results.verdict, each.results.cause, result))
    return ExperimentMachine(
        strategy,
        retries=experiment.retries,
        # Several runs that start together go through the same trials.
        replacements=0 if context.run.is_held else experiment.replacements,
        on_failure=experiment.on_failure,
    )


def context_of(context: RunContext, lasting: Lasting, published: TrialPublished) -> RunContext:
    """The context of one trial: a run of its own, in a folder of its own."""
    trial = trial_of(published)
    return replace(
        context,
        run_id=f"{context.run_id[:RUN_ID_LENGTH]}{published.serial:04x}",
        config=workload_of(context.config).with_own_prompts(
            trial_config(context.config, trial.parameters),
            # The server may still have the prompts of an earlier attempt in a cache.
            trial.number + MOST_TRIALS * (published.attempt - 1),
        ),
        artifacts=context.artifacts / TRIALS / folder_of(trial, published.attempt),
        lasting=lasting,
        epoch=time_ns(),
        # The process has another trial to take part in.
        ends_with_run=False,
    )
