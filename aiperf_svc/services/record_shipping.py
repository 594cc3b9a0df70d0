"""Sends a worker's records to a record processor, and resends them to another one if it is lost."""

import asyncio
import logging
from collections.abc import Callable

import zmq.asyncio

from aiperf_svc.adapters.messaging.bus import Bus, encode
from aiperf_svc.core.records.outbox import RecordOutbox
from aiperf_svc.protocol.messages.records import RawBatch
from aiperf_svc.protocol.ports import Port


class RecordShipping:
    """Sends the batches of the inference client. Each is kept until it is confirmed."""

    def __init__(
        self,
        bus: Bus,
        header: tuple[str, str, int],
        *,
        identity: bytes,
        on_full: Callable[[], None],
        on_room: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        """`on_full` holds the load back when too many records wait, `on_room` resumes it."""
        self._bus, self._header, self._identity = bus, header, identity
        self._on_full, self._on_room, self._log = on_full, on_room, log
        self._outbox = RecordOutbox()
        self._socket: zmq.asyncio.Socket | None = None
        self.processor = ""
        """Name of the record processor; empty until there is one."""
        self.is_holding_back = False
        self.dropped = 0
        """Number of requests whose records were lost with a processor and are no longer stored."""
        self._number = 0
        self._changed, self._connected, self._sent = (asyncio.Event() for _ in range(3))

    @property
    def waiting_bytes(self) -> int:
        return self._outbox.waiting_bytes

    def add(self, fragments: bytes, reads: bytes, bodies: bytes, last_seq: int) -> None:
        """Add a batch, in which the requests up to `last_seq` end."""
        self._number += 1
        batch = RawBatch(
            *self._header, number=self._number, fragments=fragments, reads=reads, bodies=bodies
        )
        self._outbox.add(batch, last_seq)
        self._changed.set()
        if self._outbox.is_full and not self.is_holding_back:
            self.is_holding_back = True
            self._on_full()

    def confirm(self, highest: int) -> None:
        """Record that the records manager has all requests up to this number."""
        self._outbox.confirm(highest)

    def send_to(self, processor: str, port: Port, *, address: str = "") -> None:
        """Send to this record processor. After a change, unconfirmed records are resent."""
        is_change = bool(self.processor)
        if self._socket is not None:
            self._socket.close(0)
        self._socket = self._bus.connect(zmq.DEALER, port, address=address, identity=self._identity)
        self.processor = processor
        self._connected.set()
        if is_change:
            resent, dropped = self._outbox.send_again()
            self.dropped += dropped
            self._log.warning(
                "record processor is now %s; sending %d batches again", processor, resent
            )
        self._changed.set()

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            while self._outbox and (socket := self._socket) is not None:
                batch = self._outbox.take()
                if self.is_holding_back and self._outbox.has_room:
                    self.is_holding_back = False
                    self._on_room()
                try:
                    await socket.send_multipart([self.processor.encode(), encode(batch)])
                except asyncio.CancelledError:
                    # A closing socket cancels a waiting send: the batch is kept, and is in the
                    # outbox again for the next processor.
                    if not socket.closed or _is_cancelled():
                        raise
            self._sent.set()
            self._changed.clear()
            await self._changed.wait()

    async def until_connected(self) -> None:
        """Wait until there is a record processor."""
        await self._connected.wait()

    async def until_sent(self) -> None:
        """Wait until no batch is waiting."""
        while self._outbox:
            self._sent.clear()
            await self._sent.wait()


def _is_cancelled() -> bool:
    """Return whether the current task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
