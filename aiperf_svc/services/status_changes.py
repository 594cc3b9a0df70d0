"""Numbers the changes of a status, so that who has seen one can wait for the next."""

import asyncio

from aiperf_svc.services.base import is_set_within


class StatusChanges:
    """The number of the latest change."""

    def __init__(self) -> None:
        self.number = 1
        self._next = asyncio.Event()

    def note(self) -> None:
        """Count a change, and wake up who waits for it."""
        self.number += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, after: int, timeout_s: float) -> None:
        """Wait until the number is not `after` any more, or the time is up."""
        if self.number == after:
            await is_set_within(self._next, timeout_s)
