"""Runs several stacks at once in one command: each has its own launch, lock, project folder and
record, and the failure of one does not touch the others."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiperf_svc.adapters.results_api.run_api import RunApi
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.messages import RunState
from aiperf_svc.runner import manifests
from aiperf_svc.runner.common_start import CommonStart
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.board import Board, make_board
from aiperf_svc.runner.stack.launch import NOTHING_MADE
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.run import run_one

NOT_BEGUN = "stopped by the user before its turn"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of several stacks that are run by one command."""

    name: str
    """Shown before each of its lines."""
    where: str = ""
    """The context of its cluster, or the address of its target."""
    request: StackRequest


async def run_side_by_side(
    members: Sequence[Member],
    options: StackOptions,
    *,
    limit: int,
    start: CommonStart | None = None,
) -> list[RunOutcome]:
    """Run the stacks of `members`, at most `limit` at a time, and return their outcomes in the same
    order. They begin in this order, and no question is asked. With `start`, which has the names of
    all members, those that are held get one start.

    An interrupt stops all of them as it stops one: after the first they collect what was measured,
    after the second they do not, and no other begins.
    """
    turns = asyncio.Semaphore(limit)
    options = replace(options, yes=True)
    with Interrupts() as interrupts, make_board(options.run, [m.name for m in members]) as board:
        running = [
            _Running(member, options, interrupts, board, start).run(turns) for member in members
        ]
        return await asyncio.gather(*running)


class _Running:
    """One of the stacks."""

    def __init__(
        self,
        member: Member,
        options: StackOptions,
        interrupts: Interrupts,
        board: Board,
        start: CommonStart | None,
    ) -> None:
        self._member, self._options, self._start = member, options, start
        self._interrupts = interrupts
        self._screen = board.screen(member.name)
        self._is_counting = asyncio.Event()

    async def run(self, turns: asyncio.Semaphore) -> RunOutcome:
        """Run the stack when it is its turn. Errors become outcomes."""
        async with turns:
            if self._interrupts.count:
                return self._end(self._unmade(NOT_BEGUN))
            request, screen = self._member.request, self._screen
            try:
                request.check_secrets()
                outcome = await self._unless_interrupted(
                    run_one(
                        request,
                        self._options,
                        screen,
                        counting=self._counting,
                        give_start=self._give_start if request.is_held else None,
                    )
                )
            except AiperfError as error:
                outcome = self._failed(error)
            except Exception as error:
                # The others must go on to their ends.
                text = f"unexpected {type(error).__name__}: {error}"
                outcome = self._failed(EnvironmentProblem(text))
            return self._end(outcome)

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

    def _unmade(self, reason: str) -> RunOutcome:
        return self._without_results(RunState.CANCELLED, reason, was_interrupted=True)

    def _failed(self, error: AiperfError) -> RunOutcome:
        self._screen.say(f"error: {error}")
        return self._without_results(RunState.FAILED, str(error), failure=error.exit_code)

    def _without_results(
        self,
        state: RunState,
        reason: str,
        *,
        failure: ExitCode = ExitCode.BENCHMARK_FAILED,
        was_interrupted: bool = False,
    ) -> RunOutcome:
        request = self._member.request
        return RunOutcome(
            run_id=request.plan.identity.run_id,
            state=state,
            reason=reason,
            failure=failure,
            summary=None,
            artifacts=None,
            was_interrupted=was_interrupted,
            more={"stack": request.stack},
        )

    def _end(self, outcome: RunOutcome) -> RunOutcome:
        if outcome.artifacts is not None:
            manifests.refresh(outcome.artifacts)
        if self._start is not None:
            self._start.leave(self._member.name)
        self._screen.end(outcome)
        return outcome
