"""The estimated remaining time of an experiment."""

from aiperf_svc.core.experiments.headline import time_left_s


def test_time_left_shrinks_and_is_never_negative() -> None:
    found = [time_left_s(left=5, ended=1, took_s=4, since_s=since) for since in (0, 3, 30)]
    assert found == [20, 17, 0]


def test_each_trial_is_expected_to_take_the_mean() -> None:
    assert time_left_s(left=2, ended=4, took_s=10, since_s=0) == 5


def test_time_left_is_unknown_before_first_trial_ends() -> None:
    assert time_left_s(left=6, ended=0, took_s=0, since_s=9) is None
