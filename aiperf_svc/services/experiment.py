"""The side of the system controller that outlives a trial: decides which one is next, and says so.

The trial is state and is published again and again, as the run's state is. What has ended is kept
in a file, so that a restarted controller goes on with the next trial.
"""

import asyncio
import logging

import msgspec
import zmq

from aiperf_svc.adapters.messaging.bus import TRIAL, Bus, encode
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.core.experiments.machine import (
    BeginTrial,
    EndExperiment,
    ExperimentMachine,
    Finding,
    Instruction,
    TrialEnded,
)
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.events import TrialPublished
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import is_set_within
from aiperf_svc.services.context import RunContext

REPUBLISH_S = 0.5

log = logging.getLogger(__name__)


class _Story(msgspec.Struct):
    """What a restarted controller must know."""

    begun: int = 0
    ended: list[TrialEnded] = []


class ExperimentController:
    """Publishes one trial after the other."""

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
        self._story = self._read()
        self._published = self._message(self._replay())
        self._write()

    def trial_ended(self, state: RunState, reason: str, finding: Finding | None) -> None:
        """Take the end of the trial that is on, and what it found."""
        self._ended.put_nowait(TrialEnded(self._published.serial, state, reason, finding))

    def cancel(self, reason: str) -> None:
        """Begin no other trial."""
        self._machine.cancel(reason)
        self._is_cancelled.set()

    async def run(self) -> None:
        """Publish, and begin what follows, until cancelled."""
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
            # It stays the trial that is on until then, so that its results can be looked at.
            await is_set_within(self._is_cancelled, self._cooldown_s)
            self._story.ended.append(event)
            self._published = self._message(self._machine.handle(event))
            self._write()
            self._changed.set()

    def _replay(self) -> Instruction:
        """The instruction after all trials that have ended before this process was started."""
        instruction = self._machine.begin()
        for event in self._story.ended:
            instruction = self._machine.handle(event)
        if len(self._story.ended) < self._story.begun:
            assert isinstance(instruction, BeginTrial)
            reason = "the system controller was restarted"
            event = TrialEnded(instruction.serial, RunState.FAILED, reason)
            self._story.ended.append(event)
            instruction = self._machine.handle(event)
        return instruction

    def _message(self, instruction: Instruction) -> TrialPublished:
        header = self._context.run_id, Service.SYSTEM_CONTROLLER.value, self._context.epoch
        match instruction:
            case BeginTrial(serial=serial, trial=trial, attempt=attempt):
                log.info("trial %d, attempt %d: %s", trial.number, attempt, trial.parameters)
                self._story.begun = serial
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
                    serial=self._story.begun,
                    number=0,
                    parameters={},
                    repetition=0,
                    attempt=0,
                    total=self._machine.total,
                    is_over=True,
                    state=state,
                    reason=reason,
                )

    def _read(self) -> _Story:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Story)
        except FileNotFoundError:
            return _Story()
        except (OSError, msgspec.DecodeError) as error:
            raise EnvironmentProblem(f"cannot read {self._file}: {error}") from error

    def _write(self) -> None:
        write_file(self._file, lambda: msgspec.json.encode(self._story))
