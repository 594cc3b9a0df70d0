"""Bytes that arrived first have no later time than bytes that arrived after them."""

import numpy as np
import pytest

from aiperf_svc.core.responses.read_times import ReadTimes, in_order
from aiperf_svc.protocol.records import READ_DTYPE


@pytest.mark.parametrize(
    ("stamps", "counts", "expected"),
    [
        ([1, 2, 3], [3], [1, 2, 3]),
        ([9, 2, 3], [3], [2, 2, 3]),
        ([1, 9, 8, 3], [4], [1, 3, 3, 3]),
        # Two connections. Their relative order does not change.
        ([5, 6, 1, 2], [2, 2], [5, 6, 1, 2]),
        ([5, 9, 6, 1, 7, 2], [3, 3], [5, 6, 6, 1, 2, 2]),
        ([9, 1, 8, 2], [1, 1, 2], [9, 1, 2, 2]),
        # A fragment without reads, as for a request that timed out.
        ([9, 1, 8, 2], [2, 0, 2], [1, 1, 2, 2]),
        ([7], [1], [7]),
        ([], [], []),
    ],
)
def test_reads_of_a_connection_stay_in_order(
    stamps: list[int], counts: list[int], expected: list[int]
) -> None:
    times = np.array(stamps, dtype=np.int64)
    assert in_order(times, np.array(counts, dtype=np.uint32)).tolist() == expected
    assert times.tolist() == stamps


def test_unstamped_read_precedes_the_next_stamp() -> None:
    reads = np.zeros(2, dtype=READ_DTYPE)
    reads["stamp_wall_ns"] = [5_000, 3_000]
    reads["read_wall_ns"] = [5_000, 5_100]
    reads.flags.writeable = False
    times = ReadTimes(reads, np.array([10, 20]), np.array([2], dtype=np.uint32))
    assert times.stamps.tolist() == [3_000, 3_000]


def test_random_batches_equal_fragments_read_one_by_one() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        counts = random.integers(0, 6, 20)
        stamps = random.integers(0, 100, counts.sum())
        found = in_order(stamps, counts).tolist()
        at = 0
        for count in counts.tolist():
            own = stamps[at : at + count].tolist()
            assert found[at : at + count] == [min(own[i:]) for i in range(count)]
            at += count
