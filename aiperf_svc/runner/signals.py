"""Ctrl-C and its relatives, counted."""

import asyncio
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupts:
    """Counts the signals that ask this process to stop, instead of obeying them. A context manager
    within a running loop."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()
        self._before: dict[signal.Signals, _Handler] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if number is signal.SIGHUP and before is signal.SIG_IGN:
                continue  # The user has said `nohup`.
            self._before[number] = before
            asyncio.get_running_loop().add_signal_handler(number, self.add)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, before)

    def add(self) -> None:
        """One more."""
        self.count += 1
        self._changed.set()

    async def reached(self, count: int) -> None:
        """Wait until there have been so many."""
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()
