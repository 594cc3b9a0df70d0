"""Runs all parts of a command in the order of the schedule, and returns one exit code.

    expand ──> Schedule ──> Placement.run(part) ──> SessionResults ──> join ──> finish

The session handles interrupts, the time limit and the screens. The schedule decides the order. A
placement handles one part at a time.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from aiperf_svc.adapters.host.tasks import Tasks, cancel
from aiperf_svc.adapters.terminal.screens import Screen, open_screens
from aiperf_svc.core.experiments.machine import BeginTrial
from aiperf_svc.core.experiments.schedule import (
    OUT_OF_TIME,
    AssignStart,
    CloseRound,
    EndSession,
    Event,
    FindRoom,
    Instruction,
    Interrupted,
    LookAgain,
    OutOfTime,
    Part,
    PartEnded,
    RoomFailed,
    RoomFound,
    Schedule,
    SkipPart,
    StartPart,
    WaitForRoom,
)
from aiperf_svc.core.experiments.trials import describe
from aiperf_svc.domain.errors import AiperfError, ConfigError, error_text
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import ending, signals
from aiperf_svc.runner.ending import call_webhook, finish, post_errors, send_to_trackers
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import NOTHING_CREATED, RunEnd, RunOutcome
from aiperf_svc.runner.parts import Expansion, PartContext, Placement, Work
from aiperf_svc.runner.session_results import SessionResults
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.start_gate import RoundGate, StartTimes
from aiperf_svc.workloads.previews import trial_lists

POLL_S = 15.0
"""Time between two checks of a cluster without room."""
_T = TypeVar("_T")


class Session:
    """One command that measures, from its config to its exit code."""

    def __init__(
        self,
        expansion: Expansion,
        placement: Placement,
        options: RunOptions,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """`timeout_s` is the longest time from the first part's start to the end of the loads."""
        self._expansion, self._placement = expansion, placement
        self._options, self._timeout_s = options, timeout_s
        self._has_several = expansion.is_joint or placement.limit > 1
        """Whether several parts run at the same time."""
        self._deadline_mono_s: float | None = None
        self._screens: Mapping[str, Screen] = {}
        """The screens of parts that run at the same time, by `_name_of`."""
        self._trials: dict[int, BeginTrial] = {}
        """The trial that a driver chose for each round."""
        self._error: BaseException | None = None
        """Error of the only part before anything of it was created, or a bug of this program."""
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> ExitCode:
        """Run all parts and print the results. Raises AiperfError if the run cannot start; after
        that, it ends with an exit code."""
        config, resume = self._expansion.first.config, self._options.resume
        if self._has_several and self._options.metrics_address is not None:
            raise ConfigError(
                "--serve-metrics: the page shows one run, and several run at the same time; "
                "use --otlp"
            )
        if resume is not None:
            # It imports the readers of all experiment files, which is slow.
            from aiperf_svc.adapters.storage import resuming

            resuming.check({resume / each.name: each.config for each in self._expansion.members})
        with post_errors(config, self._placement.run_id):
            if not self._placement.prepare():
                return ExitCode.INTERRUPTED
            self._results = SessionResults(self._expansion, self._placement, self._options)
            try:
                outcomes = signals.run(self._run())
            finally:
                self._results.remove_empty()
        if not self._expansion.is_joint:
            (outcome,) = outcomes.values()
            return finish(outcome, config.artifacts, self._options)
        # Joint tables and reports are slow to import.
        from aiperf_svc.runner import joining

        sent = {name: send_to_trackers(e, config.artifacts) for name, e in outcomes.items()}
        runs = self._results.joint_runs(sent)
        folder = self._results.folder
        code = joining.finish(self._expansion.kind, config.name, folder, runs, self._options)
        for run in runs:
            call_webhook(run.outcome, config.artifacts, member=run.name)
        return code

    async def _run(self) -> dict[str, RunOutcome]:
        """Run the remaining parts, and return the outcome of each member."""
        results = self._results
        rounds, shared_parts = results.rounds_left, results.shared_parts
        if rounds or results.driven is not None or shared_parts is not None:
            with Interrupts() as self._interrupts:
                context = PartContext(self._interrupts, Screen(self._options.ui))
                running = self._run_rounds(rounds, shared_parts, context)
                if not await self._unless_interrupted(running, context):
                    return {
                        work.member.name: self._not_started(work, NOTHING_CREATED)
                        for work in self._works(1)
                    }
        return await results.outcomes()

    async def _run_rounds(
        self, rounds: Sequence[int], shared_parts: Sequence[Work] | None, context: PartContext
    ) -> bool:
        """Run these rounds, or those of a driver. Returns False if nothing was created."""
        results, experiment = self._results, self._expansion.first.config.experiment
        driver = results.driven.machine if results.driven is not None else None
        async with self._placement.opened(context, shared_parts) as runnable:
            if rounds and runnable is not None and not runnable:
                return False
            rounds = rounds if runnable is None else runnable
            if rounds or driver is not None:
                self._schedule = Schedule(
                    rounds,
                    list(results.members),
                    limit=self._placement.limit,
                    asks_for_room=self._placement.limit > 1,
                    stops_on_failure=experiment is not None and experiment.on_failure == "stop",
                    driver=driver,
                )
                await self._run_parts()
            if self._error is not None:
                raise self._error
        return True

    async def _run_parts(self) -> None:
        """Carry out the schedule to its end."""
        self._starts, self._is_over = StartTimes(self._placement.lead_s), asyncio.Event()
        self._closing = asyncio.Lock()
        rounds = self._results.rounds_left if self._placement.limit > 1 else [1]
        names = [self._name_of(Part(n, each)) for each in self._results.members for n in rounds]
        with ExitStack() as stack:
            if self._has_several:
                self._screens = stack.enter_context(open_screens(self._options.ui, names))
            self._spawn(self._watch_interrupts(), "interrupts")
            try:
                self._carry_out(self._schedule.begin())
                await self._is_over.wait()
            finally:
                await cancel(*self._tasks)

    def _handle(self, event: Event) -> None:
        self._carry_out(self._schedule.handle(event))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            match each:
                case StartPart(part, trial):
                    if trial is not None:
                        self._trials[part.round] = trial
                    self._spawn(self._run_part(part), f"part {part.round} {part.member}")
                case SkipPart():
                    self._skip(each)
                case AssignStart(round_, trial_number):
                    self._starts.assign(round_, trial_number)
                case FindRoom():
                    self._spawn(self._find_room(each), "find room")
                case WaitForRoom():
                    self._spawn(self._later(POLL_S, LookAgain()), "wait for room")
                case CloseRound(round_):
                    self._spawn(self._close(round_), f"close round {round_}")
                case EndSession(end):
                    if self._results.driven is not None:
                        self._results.driven.ended = end
                    self._is_over.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._is_over.set()

    async def _watch_interrupts(self) -> None:
        await self._interrupts.reached(1)
        self._handle(Interrupted())

    async def _later(self, delay_s: float, event: Event) -> None:
        await asyncio.sleep(delay_s)
        self._handle(event)

    def _left_s(self) -> float | None:
        """Return the remaining time, which begins with the first part; None without a limit."""
        if self._timeout_s is None:
            return None
        now_mono_s = time.monotonic()
        if self._deadline_mono_s is None:
            self._deadline_mono_s = now_mono_s + self._timeout_s
            self._spawn(self._later(self._timeout_s, OutOfTime()), "time limit")
        return self._deadline_mono_s - now_mono_s

    async def _find_room(self, request: FindRoom) -> None:
        running = [work for number in request.running for work in self._works(number)]
        waiting = [self._works(number) for number in request.waiting]
        try:
            found = await self._placement.find_room(running, waiting)
        except AiperfError:
            # The cluster does not respond, which the running parts report.
            found = None
        except Exception as error:
            self._handle(RoomFailed(error_text(error)))
            return
        self._handle(RoomFound(None if found is None else request.waiting[found]))

    def _works(self, round_: int) -> list[Work]:
        return [self._results.work(Part(round_, name)) for name in self._results.members]

    # --- one part --------------------------------------------------------------------------------

    async def _run_part(self, part: Part) -> None:
        """Run a part. Errors become outcomes, so that the others continue."""
        trial = self._trials.get(part.round)
        work = self._results.work(part, trial)
        screen, left_s = self._screen(work), self._left_s()
        gate = RoundGate(part, self._starts, self._handle) if work.run.is_held else None
        context = PartContext(self._interrupts, screen, gate, left_s)
        try:
            if left_s is not None and left_s <= 0:
                outcome = self._not_started(work, OUT_OF_TIME, was_interrupted=False)
            else:
                running = self._placement.run(work, context)
                found = await self._unless_interrupted(running, context)
                outcome = found or self._not_started(work, NOTHING_CREATED)
        except Exception as error:
            if self._expansion.is_single:
                raise
            more = self._placement.more(work)
            outcome = RunEnd(run_id=work.run_id, error=error, more=more).outcome()
            screen.say(f"error: {outcome.reason}")
        if outcome.artifacts is not None:
            ending.refresh_manifest(outcome.artifacts)
        if gate is not None:
            # In its part, the trial that a driver chose is number 1.
            own = None if trial is None else trial.trial.number
            offsets = {own or number: offset for number, offset in gate.offsets.items()}
            self._results.members[part.member].offsets.update(offsets)
        screen.end(outcome.text)
        self._results.members[part.member].ended[part.round] = outcome
        self._handle(PartEnded(part, outcome.has_failed, outcome.is_last))

    async def _unless_interrupted(
        self, work: Coroutine[Any, Any, _T], context: PartContext
    ) -> _T | None:
        """Return the result of some work; None if an interrupt has cancelled it before it handles
        interrupts itself."""
        async with Tasks() as tasks:
            running = tasks.start(work, "run")
            tasks.start(context.is_counting.wait(), "counting")
            stopped = tasks.start(self._interrupts.reached(1), "stopped")
            await tasks.first()
            if not context.is_counting.is_set() and stopped.done():
                running.cancel()
            await asyncio.wait((running,))
        return None if running.cancelled() else running.result()

    def _skip(self, skipped: SkipPart) -> None:
        """Record that a part is not started."""
        work = self._results.work(skipped.part)
        was_interrupted, has_failed = self._interrupts.count > 0, skipped.has_failed
        outcome = self._not_started(
            work, skipped.reason, was_interrupted=was_interrupted, has_failed=has_failed
        )
        self._results.members[work.member.name].ended[skipped.part.round] = outcome
        if self._screens:
            self._screen(work).end(outcome.text)

    def _not_started(
        self, work: Work, reason: str, *, was_interrupted: bool = True, has_failed: bool = False
    ) -> RunOutcome:
        """Return the outcome of a part that was not started."""
        state = RunState.FAILED if has_failed else RunState.CANCELLED
        return RunOutcome(
            run_id=work.run_id,
            state=state,
            reason=reason,
            was_interrupted=was_interrupted,
            more=self._placement.more(work),
        )

    def _screen(self, work: Work) -> Screen:
        if self._screens:
            return self._screens[self._name_of(work.part)]
        screen = Screen(self._options.ui)
        if work.trial is not None:
            trial = work.trial.trial
            screen.say(f"trial {trial.number}: {describe(trial.parameters)}")
        elif len(self._expansion.rounds) > 1:
            shapes = self._expansion.shapes[work.member.name]
            screen.say(trial_lists.shape_name(shapes, work.part.round))
        return screen

    def _name_of(self, part: Part) -> str:
        """Return the name of a part among those that run at the same time."""
        shape = f"shape {part.round}" if self._placement.limit > 1 else ""
        return " ".join(filter(None, (part.member, shape)))

    async def _close(self, round_: int) -> None:
        """Add the results of a round to the folders of its members."""
        trial = self._trials.get(round_)
        async with self._closing:
            closed = await asyncio.to_thread(self._results.close, round_, trial)
        experiment = self._expansion.first.config.experiment
        if trial is not None and experiment is not None and experiment.cooldown:
            pause = asyncio.create_task(asyncio.sleep(experiment.cooldown / 1e9), name="cooldown")
            await self._interrupts.wait_for(pause, before=1)
        self._handle(closed)
