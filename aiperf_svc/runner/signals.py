"""Counts interrupts: Ctrl-C, SIGTERM and SIGHUP."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any, ClassVar, Self, TypeVar

from aiperf_svc.adapters.host.tasks import cancel

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_T = TypeVar("_T")
_Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupts:
    """Counts the signals that would stop this process. A context manager within a running loop; the
    innermost one counts."""

    _entered: ClassVar[list["Interrupts"]] = []

    def __init__(self, on_signal: Callable[[], object] | None = None) -> None:
        self.count = 0
        self._on_signal = on_signal
        self._changed = asyncio.Event()
        self._before: dict[signal.Signals, _Handler] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if number is signal.SIGHUP and before is signal.SIG_IGN:
                continue  # The user started it with `nohup`.
            self._before[number] = before
            asyncio.get_running_loop().add_signal_handler(number, self.add)
        self._entered.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.remove(self)
        loop = asyncio.get_running_loop()
        for number, before in self._before.items():
            if self._entered:
                loop.add_signal_handler(number, self._entered[-1].add)
            else:
                loop.remove_signal_handler(number)
                signal.signal(number, before)

    def add(self) -> None:
        """Count one more interrupt."""
        self.count += 1
        self._changed.set()
        if self._on_signal is not None:
            self._on_signal()

    async def reached(self, count: int) -> None:
        """Wait until there have been `count` interrupts."""
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()

    async def wait_for(self, task: "asyncio.Future[Any]", *, before: int) -> bool:
        """Return whether a task ends before interrupt number `before`, which cancels it."""
        stop = asyncio.create_task(self.reached(before), name="interrupts")
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        is_done = task.done()
        await cancel(task, stop)
        return is_done

    async def result_of(self, work: Awaitable[_T], *, before: int = 1) -> _T | None:
        """Return the result of some work; None if interrupt number `before` cancels it."""
        task = asyncio.ensure_future(work)
        return task.result() if await self.wait_for(task, before=before) else None


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine as `asyncio.run` does, but cancel it on a signal between two callbacks of the
    loop. asyncio itself cancels as soon as the signal arrives, and a callback that is about to
    resolve the cancelled future then fails with a traceback.

    Raises KeyboardInterrupt after a signal.
    """

    async def interruptible() -> _T:
        task = asyncio.current_task()
        assert task is not None
        with Interrupts(task.cancel) as interrupts:
            try:
                return await work
            except asyncio.CancelledError:
                if interrupts.count:
                    raise KeyboardInterrupt from None
                raise

    return asyncio.run(interruptible())
