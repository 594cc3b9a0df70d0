"""The raw records of a worker, from the moment they are packed until they are confirmed.

Batches wait here to be sent, and what was sent is kept, within `KEPT_BYTES`, until the records
manager has it: when a record processor is lost, another one is sent it again. What waits has a
bound too. A server may send faster than a record processor reads, and nothing in this tool may grow
for as long as that goes on. At `FULL_BYTES` the worker holds back its load; no record is dropped.
"""

from collections import deque
from typing import Final

import msgspec

from aiperf_svc.protocol.messages import RawBatch

KEPT_BYTES: Final = 16 * 2**20
"""Unconfirmed record bytes that a worker keeps for sending again."""
FULL_BYTES: Final = 64 * 2**20
"""Record bytes that wait to be sent before the worker holds back its load: two seconds of 100,000
chunks a second, so that a record processor that stops for a moment changes nothing."""
ROOM_BYTES: Final = FULL_BYTES // 2
"""The load goes on when no more than this waits."""


def _size(batch: RawBatch) -> int:
    return len(batch.fragments) + len(batch.reads) + len(batch.bodies)


class RecordOutbox:
    """Batches in order, each with the number of the last request that ends in it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RawBatch, int]] = deque()
        self._kept: deque[tuple[RawBatch, int]] = deque()
        self.waiting_bytes = 0
        self.kept_bytes = 0
        self._confirmed = 0
        self._forgotten = 0
        """Number of the last request that had to go from `_kept` before it was confirmed."""

    def __bool__(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether the load must be held back."""
        return self.waiting_bytes > FULL_BYTES

    @property
    def has_room(self) -> bool:
        """Whether a load that was held back may go on."""
        return self.waiting_bytes <= ROOM_BYTES

    def add(self, batch: RawBatch, last_seq: int) -> None:
        """A new batch."""
        self._waiting.append((batch, last_seq))
        self.waiting_bytes += _size(batch)

    def take(self) -> RawBatch:
        """The next batch to send, which is kept from here on. Raises IndexError when none waits."""
        batch, last_seq = self._waiting.popleft()
        size = _size(batch)
        self.waiting_bytes -= size
        if not batch.is_resent:
            self._kept.append((batch, last_seq))
            self.kept_bytes += size
            while self.kept_bytes > KEPT_BYTES:
                forgotten, self._forgotten = self._kept.popleft()
                self.kept_bytes -= _size(forgotten)
        return batch

    def confirm(self, highest: int) -> None:
        """The records manager has all requests up to this number."""
        self._confirmed = highest
        while self._kept and self._kept[0][1] <= highest:
            self.kept_bytes -= _size(self._kept.popleft()[0])

    def send_again(self) -> tuple[int, int]:
        """Put what is kept before all that waits, for another record processor.

        How many batches these are, and how many requests were not kept and are not confirmed.
        """
        again = [
            (msgspec.structs.replace(batch, is_resent=True), last_seq)
            for batch, last_seq in self._kept
        ]
        self._waiting.extendleft(reversed(again))
        self.waiting_bytes += sum(_size(batch) for batch, _ in again)
        return len(again), max(0, self._forgotten - self._confirmed)
