"""A worker's clock over a run: which readings are kept, and how its times are mapped."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from aiperf_svc.core.control.clock_offset import ClockHistory
from aiperf_svc.core.stats.clock_map import ClockMap, uncertainty_ns
from aiperf_svc.protocol.messages.reports import ClockEstimate

SECOND = 10**9
START = 1_700_000_000 * SECOND
MS = 1_000_000


def history(offset_ns: Callable[[int], int], seconds: int) -> tuple[ClockEstimate, ...]:
    found = ClockHistory()
    for second in range(seconds):
        found.add(
            ClockEstimate(
                offset_ns=offset_ns(second),
                uncertainty_ns=50_000,
                at_wall_ns=START + second * SECOND,
            )
        )
    return found.estimates


def bend(second: float) -> int:
    """Return the offset if NTP slews by 40 ppm for half an hour and back, for a quarter of a
    day."""
    return 7 * SECOND + round(40_000 * abs((second % 3_600) - 1_800))


def test_number_of_estimates_is_fixed_for_any_run() -> None:
    for seconds in (1, 2, 127, 128, 129, 500, 20_000):
        kept = history(lambda s: s, seconds)
        assert len(kept) <= 129
        assert kept[0].at_wall_ns == START
        assert kept[-1].at_wall_ns == START + (seconds - 1) * SECOND
        distances = np.diff([e.at_wall_ns for e in kept])[:-1]
        assert len(set(distances.tolist())) <= 1, "equal distances but for the last"


def test_a_repeated_estimate_counts_once() -> None:
    found = ClockHistory()
    for _ in range(5):
        found.add(ClockEstimate(offset_ns=1, at_wall_ns=START))
    assert len(found.estimates) == 1


def test_slewed_clocks_are_mapped_within_the_uncertainty() -> None:
    kept = history(bend, 6 * 3_600)
    clocks = ClockMap([(0, kept)])
    seconds = np.arange(0.0, 6 * 3_600 - 1, 7.3)
    walls = START + np.rint(seconds * SECOND).astype(np.int64)
    mapped = clocks.to_timing(walls, np.zeros(len(walls), dtype=np.uint16))
    true = walls + np.array([bend(s) for s in seconds])
    assert np.abs(mapped - true).max() <= clocks.uncertainty_ns
    assert clocks.uncertainty_ns < 11 * MS


def test_a_smooth_wander_is_mapped_closely() -> None:
    def wander(second: float) -> int:
        return round(3 * MS * math.sin(second / 900))

    clocks = ClockMap([(0, history(wander, 3_600))])
    seconds = np.arange(0.0, 3_599, 3.7)
    walls = START + np.rint(seconds * SECOND).astype(np.int64)
    mapped = clocks.to_timing(walls, np.zeros(len(walls), dtype=np.uint16))
    error = np.abs(mapped - walls - np.array([wander(s) for s in seconds])).max()
    assert error <= clocks.uncertainty_ns < 0.1 * MS


def test_worker_without_estimates_has_the_timing_managers_clock() -> None:
    clocks = ClockMap([(1, history(lambda _: 7 * SECOND, 10))])
    ranks = np.array([0, 1, 2, 60_000], dtype=np.uint16)
    mapped = clocks.to_timing(np.full(4, START), ranks)
    assert (mapped - START).tolist() == [0, 7 * SECOND, 0, 0]
    first = ClockMap([(0, history(lambda _: 7 * SECOND, 10))])
    assert (first.to_timing(np.full(4, START), ranks) - START).tolist() == [7 * SECOND, 0, 0, 0]


def test_workers_a_day_apart_have_their_own_lines() -> None:
    ahead = tuple(
        ClockEstimate(
            offset_ns=-86_400 * SECOND - s * 1_000, at_wall_ns=START + 86_400 * SECOND + s * SECOND
        )
        for s in range(60)
    )
    clocks = ClockMap([(0, history(lambda s: 0, 60)), (1, ahead)])
    walls = np.array([START + 30 * SECOND, START + 86_430 * SECOND, 0])
    mapped = clocks.to_timing(walls, np.array([0, 1, 1], dtype=np.uint16))
    assert mapped[0] == START + 30 * SECOND
    assert mapped[1] == pytest.approx(START + 30 * SECOND - 30_000, abs=2)
    assert mapped[2] == 0


def test_times_outside_the_estimates_keep_the_nearest_offset() -> None:
    clocks = ClockMap([(0, history(lambda s: s * 1_000, 100))])
    walls = np.array([START - SECOND, START + 1_000 * SECOND])
    mapped = clocks.to_timing(walls, np.zeros(2, dtype=np.uint16))
    assert (mapped - walls).tolist() == [0, 99_000]


def test_clock_step_is_uncertain_and_counted() -> None:
    before = ClockEstimate(offset_ns=0, at_wall_ns=START, steps_ns=5)
    middle = ClockEstimate(offset_ns=0, at_wall_ns=START + SECOND, steps_ns=5)
    after = ClockEstimate(offset_ns=200 * MS, at_wall_ns=START + 2 * SECOND, steps_ns=5 + 200 * MS)
    assert uncertainty_ns((before, middle, after)) == 100 * MS
    assert ClockMap([(0, (before, middle, after))]).steps_ns == 200 * MS


def test_one_host_is_certain() -> None:
    same = ClockEstimate(same_host=True, uncertainty_ns=9)
    assert ClockMap([(0, (same,)), (1, (same,))]).uncertainty_ns == 0
