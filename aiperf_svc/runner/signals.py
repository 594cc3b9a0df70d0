"""Ctrl-C and its relatives, counted."""

import asyncio
import signal
from types import TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the signals that ask this process to stop, instead of obeying them. A context manager
    within a running loop."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def __enter__(self) -> Self:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.add)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def add(self) -> None:
        """One more."""
        self.count += 1
        self._changed.set()

    async def reached(self, count: int) -> None:
        """Wait until there have been so many."""
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()
