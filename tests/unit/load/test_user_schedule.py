"""Users with their own clocks: the rate from the start, the gap of each user, the steady state."""

from collections import Counter

import numpy as np
import pytest

from aiperf_svc.core.load.phase_plan import credits_for
from aiperf_svc.core.load.user_schedule import UserSchedule, first_turns

SECOND = 10**9


def schedule(*, users: int = 15, rate: float = 1.0, turns: tuple[int, ...] = (20,)) -> UserSchedule:
    return UserSchedule(users=users, rate=rate, turns=np.array(turns, dtype=np.uint16))


def turn_times(made: UserSchedule, *, gap_s: float, until_s: float) -> list[float]:
    """Return when all turns are due if every response arrives in time."""
    begins = made.take(before_ns=round(until_s * SECOND)) / SECOND
    return sorted(
        begin + gap_s * turn
        for index, begin in enumerate(begins.tolist())
        for turn in range(made.turns_of(index))
        if begin + gap_s * turn < until_s
    )


def test_users_start_in_mid_conversation_as_in_aiperf() -> None:
    # The example on AIPerf's page about its user-centric rate: 15 users, 20 turns.
    assert [(each.order, each.turns) for each in first_turns(15, 20)] == [
        *((0, 0), (1, 6), (2, 11), (3, 16), (4, 2), (5, 7), (6, 12), (7, 17), (8, 3)),
        *((9, 8), (10, 13), (11, 18), (12, 4), (13, 9), (14, 14)),
    ]


@pytest.mark.parametrize("users", [1, 2, 3, 4, 6, 12, 60, 101])
def test_user_ages_are_spread_evenly(users: int) -> None:
    for turns in (1, 2, 3, 5, 7, 13, 31):
        check_ages(users, turns)


def check_ages(users: int, turns: int) -> None:
    found = first_turns(users, turns)
    assert [each.order for each in found] == list(range(users))
    left = Counter(each.turns or turns for each in found)
    assert all(1 <= some <= max(turns, 2) for some in left)
    steady = [left[some] for some in range(1, turns)]
    if steady:
        assert max(steady) - min(steady) <= 1


@pytest.mark.parametrize(("users", "turns"), [(15, 20), (6, 7), (10, 4), (1, 3)])
def test_rate_is_exact_from_the_first_request_on(users: int, turns: int) -> None:
    rate = 4.0
    made = schedule(users=users, rate=rate, turns=(turns,))
    times = turn_times(made, gap_s=users / rate, until_s=500.0)
    assert len(times) == 2_000
    assert np.allclose(np.diff(times), 1 / rate)
    assert times[0] == 0


def test_conversations_follow_each_other_without_gaps() -> None:
    made = schedule(users=12, rate=3.0, turns=(2, 9, 4, 6, 3))
    times = turn_times(made, gap_s=4.0, until_s=1_000.0)
    assert np.allclose(np.diff(times), 1 / 3)


def test_schedule_is_independent_of_chunks() -> None:
    whole = schedule().take(before_ns=2_000 * SECOND)
    made = schedule()
    parts = [made.take(before_ns=(step + 1) * SECOND, at_most=1) for step in range(3_000)]
    pieces = np.concatenate(parts)
    assert np.array_equal(pieces[: len(whole)], whole)


@pytest.mark.parametrize("turns", [(20,), (2, 9, 4), (1,)])
def test_request_count_is_met_exactly(turns: tuple[int, ...]) -> None:
    for requests in range(1, 300, 7):
        made = schedule(turns=turns)
        by_entry = np.array(turns, dtype=np.uint16)
        credits, last = credits_for(requests, by_entry, made.first)
        assert credits is not None
        taken = [made.turns_of(index) for index in range(credits)]
        assert sum(taken[:-1]) + (last or taken[-1]) == requests
        assert last < by_entry[(credits - 1) % len(by_entry)]
