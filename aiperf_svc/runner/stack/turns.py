"""Decides when each of several stacks begins: in their order, so many at a time, and as soon as the
cluster has room for it beside those that are there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.plan.stack import StackPlan

POLL_S = 15.0
"""Time between two looks at a cluster that has no room."""
MOST_BY_ROOM = 16
"""Most stacks at the same time where only the room limits them: each takes a process of Pulumi on
the machine of the command, of some hundred megabytes."""
FindRoom = Callable[[Sequence[StackPlan], Sequence[StackPlan]], Awaitable[int | None]]
"""Returns which of the second plans, the first one that can, may begin beside the first ones, which
are there or come up; None: none of them. Raises AiperfError if it cannot be known."""


class Turns:
    """The stacks that wait and those that run, in the order in which they asked for their turn."""

    def __init__(self, limit: int, find_room: FindRoom | None = None) -> None:
        self._limit, self._find_room = limit, find_room
        self._waiting: dict[asyncio.Future[bool], StackPlan] = {}
        self._running: list[StackPlan] = []
        self._changed = asyncio.Event()
        self._is_over = False
        self._error: Exception | None = None

    async def wait(self, plan: StackPlan) -> bool:
        """Wait for the turn of a stack. False: it may not begin, since the turns are over."""
        if self._error is not None:
            raise self._error
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = plan
        self._changed.set()
        try:
            return await turn
        finally:
            self._waiting.pop(turn, None)

    def leave(self, plan: StackPlan) -> None:
        """Take in that a stack that had its turn is gone."""
        self._running.remove(plan)
        self._changed.set()

    def end(self) -> None:
        """Let no other stack begin."""
        self._is_over = True
        self._changed.set()

    async def give(self) -> None:
        """Give turns, until cancelled. After an unexpected error, it is raised by `wait`."""
        try:
            await self._give()
        except Exception as error:
            self._error = error
            for turn in list(self._waiting):
                self._waiting.pop(turn)
                turn.set_exception(error)

    async def _give(self) -> None:
        while True:
            self._changed.clear()
            is_full = await self._give_now()
            waits_for_room = bool(self._waiting) and not is_full
            try:
                async with asyncio.timeout(POLL_S if waits_for_room else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _give_now(self) -> bool:
        """Let every stack begin that may. Returns whether the limit, and not the cluster, keeps
        back the others."""
        while self._waiting:
            if self._is_over:
                for turn in list(self._waiting):
                    self._begin(turn, may_begin=False)
                return True
            if len(self._running) >= self._limit:
                return True
            found = await self._next()
            if found is None:
                return False
            if found in self._waiting:
                self._begin(found, may_begin=not self._is_over)
        return True

    async def _next(self) -> asyncio.Future[bool] | None:
        """Return the turn that is next; None while no stack has room."""
        turns = list(self._waiting)
        if self._find_room is None or not self._running:
            # What a stack that is alone lacks is for its own checks to say.
            return turns[0]
        try:
            found = await self._find_room(
                tuple(self._running), [self._waiting[turn] for turn in turns]
            )
        except AiperfError:
            # The cluster is silent; the stacks that run say so.
            return None
        return None if found is None else turns[found]

    def _begin(self, turn: asyncio.Future[bool], *, may_begin: bool) -> None:
        plan = self._waiting.pop(turn)
        if may_begin:
            self._running.append(plan)
        turn.set_result(may_begin)


@asynccontextmanager
async def giving(turns: Turns) -> AsyncIterator[None]:
    """Give turns while the context is open."""
    task = asyncio.create_task(turns.give(), name="turns")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
