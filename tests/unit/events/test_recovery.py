"""The arithmetic of recovery, debt and gaps: exact numbers, and agreement with a slow reference."""

import numpy as np
import pytest

from aiperf_svc.core.events.disturbance import HOLD_S, WINDOW_S, debt, longest_gap, recovered_second


def seconds(*parts: tuple[int, int]) -> np.ndarray:
    """Return this many seconds of each count: `(length, count)`."""
    return np.concatenate([np.full(length, count, dtype=np.int64) for length, count in parts])


def slow_second(good: list[int], due: list[int], least: float) -> int | None:
    """Apply the definition literally."""
    for second in range(len(due) - HOLD_S + 1):
        windows = range(second, second + HOLD_S - WINDOW_S + 1)
        if all(
            sum(good[w : w + WINDOW_S]) >= least * sum(due[w : w + WINDOW_S]) - 1e-6
            for w in windows
        ):
            return second
    return None


def test_outage_ends_recovery_with_its_last_bad_window() -> None:
    due = seconds((60, 20))
    # Nothing for 12 s. A window may miss 5%, or 10 of 200 requests: none of these seconds.
    good = seconds((12, 0), (48, 20))
    assert recovered_second(good, due, least=0.95) == 12
    # Half a second of the outage fits into a window: second 11 has 10 of its 20 requests.
    good[11] = 10
    assert recovered_second(good, due, least=0.95) == 11


def test_load_without_a_dip_recovers_at_once() -> None:
    due = seconds((40, 20))
    assert recovered_second(due, due, least=0.95) == 0


def test_second_dip_within_the_hold_counts() -> None:
    due = seconds((80, 20))
    good = seconds((5, 0), (25, 20), (3, 0), (47, 20))
    # Only 25 good seconds follow from second 5 on, not 30.
    assert recovered_second(good, due, least=0.95) == 33
    good = seconds((5, 0), (35, 20), (3, 0), (37, 20))
    assert recovered_second(good, due, least=0.95) == 5


def test_recovery_must_hold_within_the_remaining_time() -> None:
    due = seconds((41, 20))
    good = seconds((12, 0), (29, 20))
    assert recovered_second(good, due, least=0.95) is None
    assert recovered_second(np.append(good, 20), np.append(due, 20), least=0.95) == 12
    assert recovered_second(due[:29], due[:29], least=0.95) is None


def test_seconds_without_requests_hold() -> None:
    due = seconds((3, 1), (60, 0))
    good = seconds((3, 0), (60, 0))
    assert recovered_second(good, due, least=0.95) == 3


def test_recovered_second_equals_a_slow_reference() -> None:
    for seed in range(200):
        compare_ways(seed)


def compare_ways(seed: int) -> None:
    random = np.random.default_rng(seed)
    length = int(random.integers(20, 120))
    due = random.poisson(random.choice([0.2, 2.0, 20.0]), length)
    bad = np.zeros(length)
    for _ in range(int(random.integers(0, 4))):
        begin = int(random.integers(0, length))
        bad[begin : begin + int(random.integers(1, 15))] = random.random()
    good = random.binomial(due, 1 - bad)
    least = float(random.choice([0.95, 0.9, 0.5]))
    assert recovered_second(good, due, least=least) == slow_second(
        good.tolist(), due.tolist(), least
    )


def test_debt_counts_only_misses_beyond_the_baseline() -> None:
    # 2% miss the SLO anyway: 24 of 1,200. The other 216 are 10.8 s of load at 20 per second.
    assert debt(240, 1_200, usual_share=0.02, rate=20.0) == pytest.approx((216.0, 10.8))
    assert debt(20, 1_200, usual_share=0.02, rate=20.0) == (0.0, 0.0)
    assert debt(5, 10, usual_share=0.0, rate=0.0) == (5.0, 0.0)


@pytest.mark.parametrize(
    ("moments", "gap"),
    [
        ([1, 2, 9, 12, 15, 19], 7),  # from 2, before the start, to 9
        ([1, 12, 15, 19], 11),
        ([5, 6, 13], 7),
        ([1, 2, 3], 17),  # open at the end
        ([25], 15),  # only after the end
        ([], 15),
        ([9, 4, 19, 14], 5),  # unordered
    ],
)
def test_gap_overlaps_the_time_after_the_begin(moments: list[int], gap: int) -> None:
    assert longest_gap(np.array(moments, dtype=np.int64), begin=5, end=20) == gap
