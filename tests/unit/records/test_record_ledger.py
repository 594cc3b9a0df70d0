"""Every record counts once, in whatever order and however often it arrives."""

import random

from aiperf_svc.core.records.arrived_records import RecordLedger
from aiperf_svc.protocol.messages.records import SequenceSpan


def span(first: int, last: int, *, worker: str = "w", epoch: int = 1) -> SequenceSpan:
    return SequenceSpan(worker, epoch, first, last)


def test_records_in_order_leave_nothing_missing() -> None:
    ledger = RecordLedger()
    assert ledger.accept(span(1, 4))
    assert ledger.accept(span(5, 5))
    assert ledger.highest() == {"w": 5}
    assert ledger.missing("w", 5) == 0
    assert ledger.missing("w", 7) == 2


def test_gap_holds_the_highest_until_it_is_filled() -> None:
    ledger = RecordLedger()
    ledger.accept(span(1, 2))
    assert ledger.accept(span(5, 6))
    assert ledger.accept(span(7, 9))
    assert ledger.highest() == {"w": 2}
    assert ledger.missing("w", 9) == 2
    assert ledger.accept(span(3, 4))
    assert ledger.highest() == {"w": 9}


def test_overlapping_span_is_refused_whole() -> None:
    ledger = RecordLedger()
    ledger.accept(span(1, 4))
    ledger.accept(span(8, 9))
    assert not ledger.accept(span(2, 2))
    assert not ledger.accept(span(4, 5))
    assert not ledger.accept(span(9, 10))


def test_another_epoch_of_a_worker_is_another_worker() -> None:
    ledger = RecordLedger()
    ledger.accept(span(1, 4))
    assert not ledger.accept(span(5, 6, epoch=2))


def test_records_of_a_lost_worker_are_refused() -> None:
    ledger = RecordLedger()
    ledger.accept(span(1, 4))
    ledger.fence("w", 1)
    assert not ledger.accept(span(5, 9))
    assert ledger.highest() == {"w": 4}


def test_unknown_worker_misses_all_records() -> None:
    assert RecordLedger().missing("w", 3) == 3


def test_repeats_in_any_order_are_counted_once() -> None:
    chance = random.Random(2)
    for _ in range(300):
        cuts = sorted(chance.sample(range(1, 60), 7))
        spans = [span(a + 1, b) for a, b in zip([0, *cuts], [*cuts, 60], strict=True)]
        ledger = RecordLedger()
        accepted = 0
        deliveries = spans + chance.choices(spans, k=5)
        chance.shuffle(deliveries)
        for delivery in deliveries:
            if ledger.accept(delivery):
                accepted += delivery.last - delivery.first + 1
        assert accepted == 60
        assert ledger.highest() == {"w": 60}
