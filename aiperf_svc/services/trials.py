"""Runs the trials of an experiment one after another in the processes of a run.

A process creates new service objects for each trial, so no state of a trial reaches the next one,
except for `ExperimentContext`. The process itself continues, with everything that it has imported
and loaded.

The controller's process decides which trial is next and publishes it repeatedly, like the run's
state. It stores the ended trials in a file, so a restarted controller continues with the next
trial.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.host.memory import use_one_heap
from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.adapters.messaging.bus import TRIAL, Bus, encode, receive_each
from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.core.experiments.criteria import searched_trial
from aiperf_svc.core.experiments.machine import (
    BeginTrial,
    EndExperiment,
    ExperimentMachine,
    Finding,
    Instruction,
    TrialEnded,
)
from aiperf_svc.core.experiments.summary import finding_of, row_of
from aiperf_svc.core.experiments.trials import TRIALS, folder_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.events import TrialPublished
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import is_set_within
from aiperf_svc.services.context import ExperimentContext, RunContext, make_bus
from aiperf_svc.services.experiment_results import ExperimentResults, finished_trials, trial_of
from aiperf_svc.workloads.driver import attempt_config, experiment_machine

REPUBLISH_S = 0.5
LOST_PROGRESS = "the system controller was replaced, and does not know which trials have ended"
RUN_ID_LENGTH = 8
"""Number of characters of the experiment's run id in the run ids of its trials."""

log = logging.getLogger(__name__)


class _Progress(msgspec.Struct):
    """Data for a restarted controller: the number of started trials, and the ended trials."""

    begun: int = 0
    ended: list[TrialEnded] = []


class ExperimentController:
    """Publishes one trial after another."""

    def __init__(self, context: RunContext, bus: Bus, machine: ExperimentMachine) -> None:
        """Raises EnvironmentProblem if the file cannot be read or written."""
        experiment = context.config.experiment
        assert experiment is not None
        self._context = context
        self._machine = machine
        self._cooldown_s = experiment.cooldown / 1e9
        self._publisher = bus.connect(zmq.PUB, Port.EVENTS_IN)
        self._ended: asyncio.Queue[TrialEnded] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._is_cancelled = asyncio.Event()
        self._file = context.state / f"experiment-{context.run_id}.json"
        self._progress = self._read()
        self._published = self._message(self._replay())
        self._write()

    def trial_ended(self, state: RunState, reason: str, finding: Finding | None) -> None:
        self._ended.put_nowait(TrialEnded(self._published.serial, state, reason, finding))

    def cancel(self, reason: str) -> None:
        """Start no more trials."""
        self._machine.cancel(reason)
        self._is_cancelled.set()

    async def run(self) -> None:
        """Publish the current trial and start the next ones, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish(), name="publish the trial")
            group.create_task(self._follow(), name="follow the trials")

    async def _publish(self) -> None:
        while True:
            self._changed.clear()
            await self._publisher.send_multipart([TRIAL, encode(self._published)])
            await is_set_within(self._changed, REPUBLISH_S)

    async def _follow(self) -> None:
        while not self._published.is_over:
            event = await self._ended.get()
            # Until then it stays the current trial, so its results can be read.
            await is_set_within(self._is_cancelled, self._cooldown_s)
            self._progress.ended.append(event)
            self._published = self._message(self._machine.handle(event))
            self._write()
            self._changed.set()

    def _replay(self) -> Instruction:
        """Return the instruction after all trials that ended before this process started."""
        instruction = self._machine.begin()
        for event in self._progress.ended:
            instruction = self._machine.handle(event)
        if len(self._progress.ended) < self._progress.begun:
            assert isinstance(instruction, BeginTrial)
            reason = "the system controller was restarted"
            event = TrialEnded(instruction.serial, RunState.FAILED, reason)
            self._progress.ended.append(event)
            instruction = self._machine.handle(event)
        return instruction

    def _message(self, instruction: Instruction) -> TrialPublished:
        header = self._context.run_id, Service.SYSTEM_CONTROLLER.value, self._context.epoch
        match instruction:
            case BeginTrial(serial=serial, trial=trial, attempt=attempt):
                log.info("trial %d, attempt %d: %s", trial.number, attempt, trial.parameters)
                self._progress.begun = serial
                return TrialPublished(
                    *header,
                    serial=serial,
                    number=trial.number,
                    parameters=trial.parameters,
                    repetition=trial.repetition,
                    attempt=attempt,
                    total=self._machine.total,
                )
            case EndExperiment(state=state, reason=reason):
                log.info("the experiment is %s %s", state.value, reason)
                return TrialPublished(
                    *header,
                    serial=self._progress.begun,
                    number=0,
                    parameters={},
                    repetition=0,
                    attempt=0,
                    total=self._machine.total,
                    is_over=True,
                    state=state,
                    reason=reason,
                )

    def _read(self) -> _Progress:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Progress)
        except FileNotFoundError:
            return _Progress()
        except (OSError, msgspec.DecodeError) as error:
            raise EnvironmentProblem(f"cannot read {self._file}: {error}") from error

    def _write(self) -> None:
        write_file(self._file, lambda: msgspec.json.encode(self._progress))


class TrialFollower:
    """Receives the current trial from the event bus."""

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
        latest = self.latest
        if latest is not None and not latest.is_over and _has_lost_progress(message, latest):
            end = {"is_over": True, "state": RunState.FAILED, "reason": LOST_PROGRESS}
            message = msgspec.structs.replace(latest, number=0, parameters={}, **end)
        if latest is None or (not latest.is_over and _order_key(message) > _order_key(latest)):
            self.latest = message
            self._changed.set()
            self._changed = asyncio.Event()

    async def after(self, current: TrialPublished | None) -> TrialPublished:
        """Wait for the next trial after `current`, or for the end of the experiment."""
        while self.latest is None or (current and _order_key(self.latest) <= _order_key(current)):
            await self._changed.wait()
        return self.latest


def _has_lost_progress(message: TrialPublished, latest: TrialPublished) -> bool:
    """Return whether a controller was restarted without the file of the ended trials, for example
    in another pod: it would start all trials again, and no process would follow it."""
    return message.epoch > latest.epoch and _order_key(message) < _order_key(latest)


def _order_key(message: TrialPublished) -> tuple[int, bool]:
    return message.serial, message.is_over


@dataclass(kw_only=True)
class Trials:
    """The objects with which a process goes from one trial to the next."""

    follower: TrialFollower
    shared: ExperimentContext = field(default_factory=ExperimentContext)
    results: ExperimentResults | None = None
    """Set in the process of the records manager."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """Tasks with the lifetime of this object. None of them ends by itself."""


@asynccontextmanager
async def following_trials(context: RunContext, names: Sequence[Service]) -> AsyncIterator[Trials]:
    """Follow the trials in a process of these services. Raises EnvironmentProblem."""
    if Service.RECORDS_MANAGER in names:
        use_one_heap()
    bus = make_bus(context)
    await bus.start()
    trials = Trials(follower=TrialFollower(context.run_id, bus))
    shared = trials.shared
    try:
        trials.tasks.append(asyncio.create_task(trials.follower.run(), name="follow the trials"))
        if Service.RECORDS_MANAGER in names:
            shared.results = trials.results = ExperimentResults(context)
        if Service.SYSTEM_CONTROLLER in names:
            shared.proxies = Proxies(bus)
            shared.proxies.start()
            shared.sequence = sequence = ExperimentController(context, bus, _machine(context))
            trials.tasks.append(asyncio.create_task(sequence.run(), name="experiment"))
        yield trials
    finally:
        await cancel(*trials.tasks)
        if trials.results is not None:
            await trials.results.close()
        await bus.close()


def _machine(context: RunContext) -> ExperimentMachine:
    ended = []
    for each in finished_trials(context):
        searched = searched_trial(each.results, context.config.search)
        if (finding := finding_of(row_of(each), searched)) is not None:
            ended.append((each.trial, finding))
    # Runs that start together must run the same trials.
    return experiment_machine(context.config, ended, has_replacements=not context.run.is_held)


def context_of(
    context: RunContext, shared: ExperimentContext, published: TrialPublished
) -> RunContext:
    """Return the context of one trial, which is a run with its own id and folder."""
    trial = trial_of(published)
    return replace(
        context,
        run_id=f"{context.run_id[:RUN_ID_LENGTH]}{published.serial:04x}",
        config=attempt_config(context.config, trial, published.attempt),
        artifacts=context.artifacts / TRIALS / folder_of(trial, published.attempt),
        experiment=shared,
        epoch=time_ns(),
        # The process continues with the next trial.
        ends_with_run=False,
    )
