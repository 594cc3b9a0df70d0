"""Available credits: in order, by ranges, and held back together."""

import tracemalloc

import numpy as np

from aiperf_svc.core.load.credit_queue import UNPACKED, CreditQueue, PackedPairs

MILLIONS = 10_000_000


def take_all(queue: CreditQueue) -> list[tuple[int, int]]:
    """Take all remaining credits with their due times."""
    found = []
    while queue.unpack():
        found.append((queue.next.popleft(), queue.next_due.popleft()))
    return found


def test_credits_are_used_in_grant_order() -> None:
    queue = CreditQueue()
    queue.add(range(5, 5 + 3 * UNPACKED))
    queue.add(range(0, 40, 4))
    found = []
    while queue.unpack():
        found.append(queue.next.popleft())
    assert found == [*range(5, 5 + 3 * UNPACKED), *range(0, 40, 4)]
    assert not queue


def test_ten_million_credits_use_constant_memory() -> None:
    tracemalloc.start()
    queue = CreditQueue()
    queue.add(range(MILLIONS))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(queue) == MILLIONS
    assert peak < 200_000


def test_each_due_credit_occupies_eight_bytes() -> None:
    due = np.arange(1_000_000, dtype=np.int64)
    queue = CreditQueue()
    tracemalloc.start()
    queue.add(range(1_000_000), due)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_held_credits_keep_their_due_times() -> None:
    count = 2 * UNPACKED + 7
    queue = CreditQueue()
    queue.add(range(0, 3 * count, 3), np.arange(count, dtype=np.int64) * 10)
    queue.next.popleft()
    queue.next_due.popleft()
    queue.hold()
    assert not queue.unpack()
    assert not queue.next
    assert len(queue) == count - 1
    queue.release()
    assert take_all(queue) == [(3 * i, 10 * i) for i in range(1, count)]


def test_grant_while_credits_are_held_waits_with_them() -> None:
    queue = CreditQueue()
    queue.hold()
    queue.add(range(3))
    assert (len(queue), len(queue.next)) == (3, 0)
    queue.release()
    assert list(queue.next) == [0, 1, 2]


def test_due_credits_are_counted_over_all_grants() -> None:
    queue = CreditQueue()
    queue.add(range(3 * UNPACKED), np.arange(3 * UNPACKED, dtype=np.int64))
    assert queue.due_before(UNPACKED + 5) == UNPACKED + 5
    queue.clear()
    assert (len(queue), queue.due_before(2**62)) == (0, 0)


def test_pairs_come_out_in_order() -> None:
    pairs = PackedPairs()
    found = []
    for i in range(1_000):
        pairs.append((i, -i))
        pairs.append((i, i))
        found.append(pairs.popleft())
    while pairs:
        found.append(pairs.popleft())
    assert found == [pair for i in range(1_000) for pair in ((i, -i), (i, i))]
