"""Shares follow from two readings of counters."""

from aiperf_svc.adapters.ranks.counters import Counters, pressure_shares


def test_pressure_is_the_share_of_the_time_between_two_readings() -> None:
    before = Counters(mono_ns=10**9, pressure_us={"cpu": 500_000, "io": 7})
    after = Counters(mono_ns=3 * 10**9, pressure_us={"cpu": 1_000_000, "io": 7, "memory": 9})
    assert pressure_shares(before, after) == {"cpu": 0.25, "io": 0.0, "memory": 0.0}


def test_a_share_is_at_most_the_whole_time() -> None:
    before, after = Counters(pressure_us={"cpu": 0}), Counters(pressure_us={"cpu": 10**6})
    assert pressure_shares(before, after) == {"cpu": 1.0}
