"""Batches to send and batches kept for retransmission stay within their limits."""

from aiperf_svc.core.records.outbox import FULL_BYTES, KEPT_BYTES, RecordOutbox
from aiperf_svc.protocol.messages.records import RawBatch

MIB = 2**20


def batch(number: int, size: int = MIB) -> RawBatch:
    return RawBatch("run", "w", 1, number=number, fragments=b"", reads=b"", bodies=bytes(size))


def filled(count: int) -> RecordOutbox:
    outbox = RecordOutbox()
    for number in range(1, count + 1):
        outbox.add(batch(number), number)
    return outbox


def test_batches_leave_in_arrival_order() -> None:
    outbox = filled(3)
    assert [outbox.take().number for _ in range(3)] == [1, 2, 3]
    assert (bool(outbox), outbox.waiting_bytes) == (False, 0)


def test_outbox_fills_at_bound_and_reopens_at_half() -> None:
    outbox = filled(FULL_BYTES // MIB)
    assert not outbox.is_full
    outbox.add(batch(0), 0)
    assert outbox.is_full
    while not outbox.has_room:
        outbox.take()
    assert outbox.waiting_bytes == FULL_BYTES // 2


def test_new_processor_gets_unconfirmed_batches_first() -> None:
    outbox = filled(5)
    for _ in range(3):
        outbox.take()
    outbox.confirm(1)
    assert outbox.send_again() == (2, 0)
    again = [outbox.take() for _ in range(4)]
    assert [(b.number, b.is_resent) for b in again] == [
        (2, True),
        (3, True),
        (4, False),
        (5, False),
    ]
    assert (bool(outbox), outbox.waiting_bytes) == (False, 0)


def test_kept_batches_are_bounded_and_drops_are_counted() -> None:
    count = KEPT_BYTES // MIB + 10
    outbox = filled(count)
    for _ in range(count):
        outbox.take()
    assert outbox.kept_bytes == KEPT_BYTES
    outbox.confirm(4)
    assert outbox.send_again() == (KEPT_BYTES // MIB, 6)


def test_confirmed_batches_are_dropped() -> None:
    outbox = filled(3)
    for _ in range(3):
        outbox.take()
    outbox.confirm(3)
    assert (outbox.kept_bytes, outbox.send_again()) == (0, (0, 0))
