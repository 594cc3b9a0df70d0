"""Users and slots start one after another over a ramp, and connect shortly before."""

import pytest

from aiperf_svc.core.load.ramp import CONNECT_AHEAD_NS, ConnectionsAhead, opening_times

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_openings_of_all_workers_match_the_ramp(workers: int) -> None:
    for count in (1, 7, 8, 100):
        times = [
            at
            for rank in range(workers)
            for at in opening_times(
                count=count, rank=rank, workers=workers, start_ns=5, ramp_ns=1_000
            )
        ]
        assert sorted(times) == [5 + 1_000 * place // count for place in range(count)]


def test_users_without_a_ramp_begin_together() -> None:
    assert set(opening_times(count=9, rank=1, workers=2, start_ns=5, ramp_ns=0)) == {5}
    assert list(opening_times(count=0, rank=0, workers=1, start_ns=5, ramp_ns=0)) == []


def test_users_connect_a_little_before_they_begin() -> None:
    ahead = ConnectionsAhead(place * SECOND_NS for place in range(100))
    assert [ahead.wanted(second * SECOND_NS) for second in (0, 10, 97)] == [3, 13, 100]
    assert ahead.wanted(98 * SECOND_NS) is None


def test_connections_are_opened_ahead_of_each_user() -> None:
    ahead = ConnectionsAhead([0, CONNECT_AHEAD_NS + 10])
    assert [ahead.wanted(now) for now in (-10, 9, 10, 11)] == [1, 1, 2, None]


def test_absent_target_gets_no_connections_ahead() -> None:
    ahead = ConnectionsAhead([0, CONNECT_AHEAD_NS + 10])
    ahead.stop()
    assert ahead.wanted(0) is None
    assert ConnectionsAhead().wanted(0) is None
