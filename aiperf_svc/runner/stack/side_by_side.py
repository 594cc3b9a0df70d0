"""Runs several stacks at once in one command: each has its own launch, lock, project folder and
record, and the failure of one does not touch the others."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiperf_svc.adapters.results_api.run_api import RunApi
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.domain.errors import BenchmarkFailed, ConfigError
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import manifests
from aiperf_svc.runner.common_start import CommonStart
from aiperf_svc.runner.outcome import RunOutcome, failed_outcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.board import Board, make_board
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.run import run_one
from aiperf_svc.runner.stack.stack_outcome import NOTHING_MADE
from aiperf_svc.runner.stack.turns import Turns, giving

NOT_BEGUN = "stopped by the user before its turn"
NO_TURN = "not begun: the experiment ended before its turn"
NO_TIME = "not begun: --timeout was over before its turn"

OnEnd = Callable[["Member", RunOutcome], None]
"""Takes in the outcome of a stack as soon as it has ended."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of several stacks that are run by one command."""

    name: str
    """Shown before each of its lines."""
    where: str = ""
    """The context of its cluster, or the address of its target."""
    request: StackRequest


def check_namespace(deployment: Deployment, key: str) -> None:
    """Raise ConfigError if several stacks in one cluster, because of `key`, would each make the
    same namespace."""
    space = deployment.namespace
    if space.mode == "create":
        raise ConfigError(
            f"deployment.namespace: {space.name} would be made by one stack, and there are several "
            f"({key}); make it before and use mode: existing, or leave it out"
        )


async def run_side_by_side(
    members: Sequence[Member],
    options: StackOptions,
    *,
    turns: Turns,
    start: CommonStart | None = None,
    on_end: OnEnd | None = None,
) -> list[RunOutcome]:
    """Run the stacks of `members` and return their outcomes in the same order. They ask for their
    turn in this order, and no question is asked. With `start`, which has the names of all members,
    those that are held get one start.

    An interrupt stops all of them as it stops one: after the first they collect what was measured,
    after the second they do not, and no other begins. `timeout_s` of the options counts from the
    first turn.
    """
    options = replace(options, yes=True)
    names = [member.name for member in members]
    with Interrupts() as interrupts, make_board(options.run, names) as board:
        deadline = _Deadline(options.timeout_s)
        stopping = asyncio.create_task(_end_at(interrupts, turns), name="end of turns")
        try:
            async with giving(turns):
                return await asyncio.gather(
                    *(
                        _Running(member, options, interrupts, board, start, on_end).run(
                            turns, deadline
                        )
                        for member in members
                    )
                )
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)


async def _end_at(interrupts: Interrupts, turns: Turns) -> None:
    """Let no other stack begin after an interrupt."""
    await interrupts.reached(1)
    turns.end()


class _Deadline:
    """The time limit of all stacks, which begins with the first turn."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._started_mono_s: float | None = None

    def left_s(self) -> float | None:
        """Return the time that is left; None without a limit."""
        now_mono_s = time.monotonic()
        self._started_mono_s = self._started_mono_s or now_mono_s
        return None if self._limit_s is None else self._started_mono_s + self._limit_s - now_mono_s


class _Running:
    """One of the stacks."""

    def __init__(
        self,
        member: Member,
        options: StackOptions,
        interrupts: Interrupts,
        board: Board,
        start: CommonStart | None,
        on_end: OnEnd | None,
    ) -> None:
        self._member, self._options, self._start = member, options, start
        self._on_end = on_end
        self._interrupts = interrupts
        self._screen = board.screen(member.name)
        self._is_counting = asyncio.Event()

    async def run(self, turns: Turns, deadline: _Deadline) -> RunOutcome:
        """Run the stack when it is its turn. Errors become outcomes."""
        try:
            outcome = await self._in_turn(turns, deadline)
        except Exception as error:
            # The others must go on to their ends.
            outcome = self._failed(error)
        if outcome.artifacts is not None:
            manifests.refresh(outcome.artifacts)
        if self._start is not None:
            self._start.leave(self._member.name)
        self._screen.end(outcome)
        if self._on_end is not None:
            self._on_end(self._member, outcome)
        return outcome

    async def _in_turn(self, turns: Turns, deadline: _Deadline) -> RunOutcome:
        plan = self._member.request.plan
        if not await turns.wait(plan):
            if self._interrupts.count:
                return self._unmade(NOT_BEGUN)
            return self._without_turn(NO_TURN)
        try:
            return await self._run(deadline.left_s())
        finally:
            turns.leave(plan)

    async def _run(self, left_s: float | None) -> RunOutcome:
        if self._interrupts.count:
            return self._unmade(NOT_BEGUN)
        if left_s is not None and left_s <= 0:
            return self._without_turn(NO_TIME)
        request = self._member.request
        request.check_secrets()
        return await self._unless_interrupted(
            run_one(
                request,
                replace(self._options, timeout_s=left_s),
                self._screen,
                counting=self._counting,
                give_start=self._give_start if request.run.is_held else None,
            )
        )

    async def _give_start(self, api: RunApi, say: Callable[[str], None]) -> None:
        if self._start is not None:
            await self._start.give(self._member.name, api, say)

    @contextmanager
    def _counting(self) -> Iterator[Interrupts]:
        """The interrupts of all, from when this stack handles them itself."""
        self._is_counting.set()
        yield self._interrupts

    async def _unless_interrupted(self, work: Coroutine[Any, Any, RunOutcome]) -> RunOutcome:
        """Return the result of the work. An interrupt before it counts them itself cancels it."""
        running = asyncio.create_task(work, name=f"run {self._member.name}")
        counting = asyncio.create_task(self._is_counting.wait(), name="counting")
        stopped = asyncio.create_task(self._interrupts.reached(1), name="interrupts")
        try:
            await asyncio.wait((running, counting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not self._is_counting.is_set() and stopped.done():
                running.cancel()
            await asyncio.wait((running,))
        finally:
            for task in (running, counting, stopped):
                task.cancel()
            await asyncio.gather(running, counting, stopped, return_exceptions=True)
        return self._unmade(NOTHING_MADE) if running.cancelled() else running.result()

    def _without_turn(self, reason: str) -> RunOutcome:
        outcome = failed_outcome(BenchmarkFailed(reason), **self._known)
        return replace(outcome, state=RunState.CANCELLED)

    def _unmade(self, reason: str) -> RunOutcome:
        outcome = failed_outcome(BenchmarkFailed(reason), **self._known)
        return replace(outcome, state=RunState.CANCELLED, was_interrupted=True)

    def _failed(self, error: Exception) -> RunOutcome:
        outcome = failed_outcome(error, **self._known)
        self._screen.say(f"error: {outcome.reason}")
        return outcome

    @property
    def _known(self) -> dict[str, Any]:
        """What the outcome says of the stack, however it ends."""
        request = self._member.request
        return {"run_id": request.plan.identity.run_id, "more": {"stack": request.stack}}
