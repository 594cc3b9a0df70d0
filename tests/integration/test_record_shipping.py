"""Records are sent to one record processor at a time, and again to the next if it is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from aiperf_svc.adapters.messaging.bus import Bus, decode
from aiperf_svc.core.records import outbox
from aiperf_svc.protocol.messages.records import RawBatch
from aiperf_svc.protocol.ports import Port
from aiperf_svc.services.record_shipping import RecordShipping

HEADER = ("run", "worker-0", 1)


class FakeSocket:
    """Accepts messages while `is_open` is set."""

    def __init__(self, sent: "asyncio.Queue[tuple[str, int, bool]]") -> None:
        self._sent = sent
        self.closed = False
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.has_begun = asyncio.Event()
        self._waiting: asyncio.Future[bool] | None = None

    async def send_multipart(self, frames: list[bytes]) -> None:
        self._waiting = asyncio.ensure_future(self.is_open.wait())  # type: ignore[assignment]
        self.has_begun.set()
        await self._waiting  # type: ignore[misc]
        batch = decode(frames[1])
        assert isinstance(batch, RawBatch)
        self._sent.put_nowait((frames[0].decode(), batch.number, batch.is_resent))

    def close(self, _linger: int) -> None:
        self.closed = True
        if self._waiting is not None:
            self._waiting.cancel()


class FakeBus:
    """Creates fake sockets."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[tuple[str, int, bool]] = asyncio.Queue()
        self.sockets: list[FakeSocket] = []
        self.places: list[tuple[Port, str]] = []

    def connect(self, _kind: int, port: Port, *, address: str, identity: bytes) -> Any:
        assert identity == b"worker-0.1"
        self.places.append((port, address))
        self.sockets.append(FakeSocket(self.sent))
        return self.sockets[-1]


class Shipped:
    """Records with a fake bus, and the requests to hold or release the load."""

    def __init__(self) -> None:
        self.bus, self.signals = FakeBus(), list[str]()
        self.records = RecordShipping(
            cast("Bus", self.bus),
            HEADER,
            identity=b"worker-0.1",
            on_full=lambda: self.signals.append("hold back"),
            on_room=lambda: self.signals.append("go on"),
            log=logging.getLogger("test"),
        )

    def add(self, last_seq: int, size: int = 1) -> None:
        self.records.add(bytes(size), b"", b"", last_seq)

    async def sent(self, count: int) -> list[tuple[str, int, bool]]:
        return [await self.bus.sent.get() for _ in range(count)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.records.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


@pytest.fixture
async def shipped() -> Shipped:
    return Shipped()


async def test_batches_wait_for_a_processor_and_are_numbered(shipped: Shipped) -> None:
    shipped.add(5)
    async with shipped.running():
        shipped.add(9)
        shipped.records.send_to("p0", Port.RAW_DIRECT, address="tcp://p0")
        await shipped.records.until_connected()
        assert await shipped.sent(2) == [("p0", 1, False), ("p0", 2, False)]
        await shipped.records.until_sent()
    assert shipped.bus.places == [(Port.RAW_DIRECT, "tcp://p0")]


async def test_unconfirmed_batch_is_sent_to_next_processor(shipped: Shipped) -> None:
    shipped.records.send_to("p0", Port.RAW_FRONT)
    async with shipped.running():
        for last_seq in (5, 9):
            shipped.add(last_seq)
        await shipped.sent(2)
        shipped.records.confirm(5)
        shipped.records.send_to("p1", Port.RAW_FRONT)
        shipped.add(12)
        assert await shipped.sent(2) == [("p1", 2, True), ("p1", 3, False)]
    assert [each.closed for each in shipped.bus.sockets] == [True, False]
    assert shipped.records.dropped == 0


async def test_batch_in_closing_socket_goes_to_next_processor(shipped: Shipped) -> None:
    shipped.records.send_to("p0", Port.RAW_FRONT)
    shipped.bus.sockets[0].is_open.clear()
    async with shipped.running():
        shipped.add(5)
        await shipped.bus.sockets[0].has_begun.wait()
        shipped.records.send_to("p1", Port.RAW_FRONT)
        assert await shipped.sent(1) == [("p1", 1, True)]


async def test_dropped_records_are_counted_with_a_lost_processor(
    shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "KEPT_BYTES", 10)
    shipped.records.send_to("p0", Port.RAW_FRONT)
    async with shipped.running():
        for last_seq in (5, 9):
            shipped.add(last_seq, size=8)
        await shipped.sent(2)
        shipped.records.send_to("p1", Port.RAW_FRONT)
        assert await shipped.sent(1) == [("p1", 2, True)]
    assert shipped.records.dropped == 5


async def test_full_outbox_holds_load_back_once(
    shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FULL_BYTES", 20)
    monkeypatch.setattr(outbox, "ROOM_BYTES", 10)
    for last_seq in range(1, 5):
        shipped.add(last_seq, size=8)
    assert (shipped.signals, shipped.records.is_holding_back) == (["hold back"], True)
    assert shipped.records.waiting_bytes == 32
    shipped.records.send_to("p0", Port.RAW_FRONT)
    async with shipped.running():
        await shipped.records.until_sent()
    assert (shipped.signals, shipped.records.is_holding_back) == (["hold back", "go on"], False)
