"""System controller: owns the state of the run and hosts the proxies that connect all services."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from aiperf_svc.adapters.messaging.bus import DOWN, Bus
from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.config.workload import Config
from aiperf_svc.core.control import run_machine
from aiperf_svc.core.control.roster import CONTROL_SILENCE_NS, ListeningClock
from aiperf_svc.core.control.run_machine import RunMachine
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.events import (
    CancelRequested,
    Heartbeat,
    RosterPublished,
    RunStatePublished,
    StartRequested,
)
from aiperf_svc.protocol.run_states import FINAL_STATES, RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, is_set_within, mono_ns
from aiperf_svc.services.context import RunContext
from aiperf_svc.workloads.registry import workload_of

REPUBLISH_S = 0.5
CONFIGURING_S = 600.0
"""Timeout for building the dataset and connecting, including downloads."""
READY_S = 30.0
"""Timeout until all services have the frozen roster."""
DRAINING_S = 60.0
"""Timeout for the last records to arrive. The records manager declares them lost earlier."""
PROCESSING_S = 900.0
ENDING_S = 15.0
"""Timeout for the last work of the services, before the next trial or the end."""
RESULTS_S = 300.0
"""Timeout for the records manager, which computes the results of a failed run after its end."""

log = logging.getLogger(__name__)


def _held_s(config: Config, *, is_trial: bool) -> float:
    """Return how long a held run waits for its start time: as long as the other runs may take to
    become ready. The runner that sets the start time may have ended. A trial also waits for the
    other runs' previous trial, whose length is unknown here."""
    deployment = config.deployment
    if is_trial:
        return deployment.ttl / 1e9
    return (deployment.ready_timeout + deployment.registration_timeout) / 1e9 + _configuring_s(
        config, is_held=True
    )


def _quality_s(config: Config) -> float:
    """Return the timeout of a quality gate, which runs while results are processed."""
    quality = config.inference.quality if config.inference is not None else None
    return 0.0 if quality is None else quality.timeout / 1e9


def _configuring_s(config: Config, *, is_held: bool) -> float:
    """Return the timeout of the configuration."""
    return CONFIGURING_S + workload_of(config).longest_waits_ns(config, is_held=is_held) / 1e9


class SystemController(BaseService):
    """Connects the state machine with the event bus."""

    service = Service.SYSTEM_CONTROLLER
    is_control = True
    stays_after_end = True  # it hosts the proxies through which the others report their end

    def __init__(self, context: RunContext, bus: Bus) -> None:
        experiment = context.experiment
        self._sequence = experiment.sequence if experiment is not None else None
        if experiment is not None and experiment.proxies is not None:
            self._proxies = experiment.proxies
            self._proxies.give_up(())
        else:
            self._proxies = Proxies(bus)
            self._proxies.start()
        super().__init__(context, bus)
        self._machine = RunMachine(
            has_warmup=workload_of(context.config).has_warmup(context.config),
            is_held=context.run.is_held,
        )
        self._number = 1
        self._finding: Finding | None = None
        self._has_ended = False
        """Whether the end of the trial was reported to the experiment."""
        self._since_mono_ns = mono_ns()
        self._clock = ListeningClock()
        self._manager_beat_ns = 0
        """Time of the latest heartbeat of the worker manager."""
        self._changed = asyncio.Event()
        held_s = _held_s(context.config, is_trial=self._sequence is not None)
        self._deadlines = {
            RunState.PENDING: context.config.deployment.registration_timeout / 1e9,
            RunState.CONFIGURING: _configuring_s(context.config, is_held=context.run.is_held),
            RunState.READY: held_s if context.run.is_held else READY_S,
            RunState.DRAINING: DRAINING_S,
            RunState.PROCESSING: PROCESSING_S + _quality_s(context.config),
            **dict.fromkeys(FINAL_STATES, ENDING_S),
        }
        self._marker = context.state / f"started-{context.run_id}"
        if self._marker.exists():
            self._handle_failed("the system controller was restarted after the load had begun")

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._publish_state(), self._watch_deadlines()]

    def on_roster(self, roster: RosterPublished) -> None:
        self._proxies.give_up(m.id for m in roster.members if m.lost)
        self._handle(run_machine.RosterChanged(roster.members, roster.complete))

    def on_heartbeat(self, beat: Heartbeat) -> None:
        if beat.seen_state > self._number and beat.sender != self.id:
            self._handle_failed("system-controller was replaced after the load had begun")
        self._watch_worker_manager(beat)
        if beat.finding is not None:
            self._finding = msgspec.convert(beat.finding, Finding)
        self._handle(run_machine.HeartbeatReceived(beat))

    def _watch_worker_manager(self, beat: Heartbeat) -> None:
        """Detect the loss of the worker manager, which detects the losses of all other services.
        Until the roster is frozen, another instance may replace it."""
        if beat.sender == self.id:
            self._clock.handle_own_heartbeat(mono_ns())
            silent_ns = self._clock.ns - self._manager_beat_ns
            is_frozen = self.roster is not None and self.roster.frozen
            if is_frozen and silent_ns > CONTROL_SILENCE_NS:
                name = Service.WORKER_MANAGER.value
                self._handle_failed(f"{name} was lost; the run cannot continue without it")
        elif beat.service is Service.WORKER_MANAGER:
            self._manager_beat_ns = self._clock.ns

    def on_cancel_requested(self, message: CancelRequested) -> None:
        if self._sequence is not None:
            self._sequence.cancel(message.reason)
        self._handle(run_machine.CancelRequested(message.reason))

    def on_start_requested(self, message: StartRequested) -> None:
        self._handle(run_machine.StartScheduled(message.at_wall_ns))

    def _handle_failed(self, reason: str) -> None:
        self._handle(run_machine.DeadlinePassed(self._machine.state, reason))

    def _handle(self, event: run_machine.Event) -> None:
        self._carry_out(self._machine.handle(event))
        if self._machine.has_everyone_ended:
            self._end()

    def _end(self) -> None:
        """Let this process end, or report the end of the trial to the experiment."""
        if self._sequence is None:
            if self.state.is_final:  # it was received from the bus, so it was published
                self.finished.set()
        elif not self._has_ended:
            self._has_ended = True
            machine = self._machine
            self._sequence.trial_ended(machine.state, machine.reason, self._finding)

    def _carry_out(self, instructions: Iterable[run_machine.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case run_machine.MarkStarted():
                    self._mark_started()
                case run_machine.Publish(state=state, reason=reason):
                    self._number += 1
                    self._since_mono_ns = mono_ns()
                    self._changed.set()
                    log.info("%s %s", state.value, reason)

    def _mark_started(self) -> None:
        try:
            self._marker.parent.mkdir(parents=True, exist_ok=True)
            self._marker.touch()
        except OSError as error:
            problem = EnvironmentProblem(f"cannot write {self._marker}: {error.strerror}")
            self._handle_failed(str(problem))

    async def _publish_state(self) -> None:
        while True:
            self._changed.clear()
            machine = self._machine
            await self.publish(
                DOWN,
                RunStatePublished(
                    *self.header,
                    number=self._number,
                    state=machine.state,
                    reason=machine.reason,
                    is_cancelling=machine.is_cancelling,
                    exit_code=machine.exit_code,
                    ends_early=machine.ends_early,
                    start_wall_ns=machine.start_wall_ns,
                ),
            )
            await is_set_within(self._changed, REPUBLISH_S)

    async def _watch_deadlines(self) -> None:
        while True:
            state = self._machine.state
            await asyncio.sleep(0.25)
            if state is self._machine.state:
                self._check_deadline(state, (mono_ns() - self._since_mono_ns) / 1e9)

    def _check_deadline(self, state: RunState, elapsed_s: float) -> None:
        """End the current state if it exceeds its timeout."""
        limit_s = self._deadlines.get(state)
        if limit_s is None or elapsed_s < limit_s:
            return
        if state.is_final:
            has_results = Service.RECORDS_MANAGER not in self._machine.waiting_for()
            if has_results or elapsed_s >= RESULTS_S:
                self._end()
            return
        missing = self._missing() or self._unmet_condition
        self._handle(
            run_machine.DeadlinePassed(
                state, f"{state.value} took over {limit_s:g} s; still missing: {missing}"
            )
        )

    def _missing(self) -> str:
        if self._machine.state is RunState.PENDING:
            missing = self.roster.missing if self.roster is not None else ("the worker manager",)
        else:
            missing = self._machine.waiting_for()
        return ", ".join(missing)

    @property
    def _unmet_condition(self) -> str:
        """Return what a state waits for besides services."""
        is_held = self._machine.state is RunState.READY and self.context.run.is_held
        return "the start time, which the runner sets" if is_held else "no service"
