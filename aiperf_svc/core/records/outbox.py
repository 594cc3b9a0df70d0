"""The raw records of a worker, from packing until their confirmation.

Batches wait here to be sent. Sent ones are kept, within `KEPT_BYTES`, until the records manager has
them. If a record processor is lost, they are sent to another one. The waiting batches are bounded
too, since a server may send faster than a record processor reads for any length of time. At
`FULL_BYTES` the worker pauses its load; no record is dropped.
"""

from collections import deque
from typing import Final

import msgspec

from aiperf_svc.protocol.messages.records import RawBatch

KEPT_BYTES: Final = 16 * 2**20
"""Maximum bytes of unconfirmed records that a worker keeps for resending."""
FULL_BYTES: Final = 64 * 2**20
"""Maximum bytes of waiting records before the worker pauses its load: two seconds of 100,000 chunks
per second, so that a short pause of a record processor has no effect."""
ROOM_BYTES: Final = FULL_BYTES // 2
"""Maximum waiting bytes at which the load resumes."""


def _size(batch: RawBatch) -> int:
    return len(batch.fragments) + len(batch.reads) + len(batch.bodies)


class RecordOutbox:
    """Queue of batches, each with the number of the last request that ends in it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RawBatch, int]] = deque()
        self._kept: deque[tuple[RawBatch, int]] = deque()
        self.waiting_bytes = 0
        self.kept_bytes = 0
        self._confirmed = 0
        self._forgotten = 0
        """Number of the last request removed from `_kept` before its confirmation."""

    def __bool__(self) -> bool:
        """Return whether a batch waits to be sent."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """True if the load must pause."""
        return self.waiting_bytes > FULL_BYTES

    @property
    def has_room(self) -> bool:
        """True if a paused load may resume."""
        return self.waiting_bytes <= ROOM_BYTES

    def add(self, batch: RawBatch, last_seq: int) -> None:
        self._waiting.append((batch, last_seq))
        self.waiting_bytes += _size(batch)

    def take(self) -> RawBatch:
        """Return the next batch to send, and keep it. Raises IndexError if none waits."""
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
        """Record that the records manager has all requests up to this number."""
        self._confirmed = highest
        while self._kept and self._kept[0][1] <= highest:
            self.kept_bytes -= _size(self._kept.popleft()[0])

    def send_again(self) -> tuple[int, int]:
        """Queue the kept batches before the waiting ones, for another record processor.

        Returns the number of these batches, and the number of requests that were neither kept nor
        confirmed.
        """
        resent = [
            (msgspec.structs.replace(batch, is_resent=True), last_seq)
            for batch, last_seq in self._kept
        ]
        self._waiting.extendleft(reversed(resent))
        self.waiting_bytes += sum(_size(batch) for batch, _ in resent)
        return len(resent), max(0, self._forgotten - self._confirmed)
