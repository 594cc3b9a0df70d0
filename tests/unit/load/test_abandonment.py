"""Requests to abandon are chosen at random, independently of their distribution to workers."""

import itertools
import math

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.load.abandonment import Abandonment, abandonment_of
from tests.support.small_configs import small_config

COUNT = 40_000


def choice(share: float = 0.1, *, seed: int = 7) -> Abandonment:
    return Abandonment(share=share, delay_ns=0, seed=seed)


def config(**cancellation: object) -> BenchmarkConfig:
    return small_config(load={"concurrency": 1, "requests": 1, "cancellation": cancellation})


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("turn", [0, 3])
def test_abandoned_share_is_as_configured(share: float, turn: int) -> None:
    made = choice(share)
    chosen = sum(made.is_chosen(index, turn) for index in range(COUNT))
    spread = math.sqrt(COUNT * share * (1 - share))
    assert abs(chosen - COUNT * share) < 4 * spread


def test_all_or_no_requests_are_abandoned() -> None:
    assert all(choice(1.0).is_chosen(index, 0) for index in range(1_000))
    assert not any(choice(0.0).is_chosen(index, 0) for index in range(1_000))


def test_choices_of_neighbours_turns_and_seeds_are_independent() -> None:
    one, other = choice(0.5), choice(0.5, seed=8)
    first = [one.is_chosen(i, 0) for i in range(COUNT + 2)]
    others = {
        "neighbours": first[1:],
        "workers": first[2:],
        "turns": [one.is_chosen(i, 1) for i in range(COUNT)],
        "seeds": [other.is_chosen(i, 0) for i in range(COUNT)],
    }
    for name, found in others.items():
        both = sum(a and b for a, b in zip(first[:COUNT], found[:COUNT], strict=True))
        assert abs(both - COUNT / 4) < 4 * math.sqrt(COUNT * 3 / 16), name


def test_abandoned_requests_are_not_clustered() -> None:
    made = choice(0.5)
    chosen = [made.is_chosen(index, 0) for index in range(COUNT)]
    changes = sum(a != b for a, b in itertools.pairwise(chosen))
    assert abs(changes - COUNT / 2) < 4 * math.sqrt(COUNT / 4)


def test_config_without_a_rate_abandons_nothing() -> None:
    assert abandonment_of(config(rate=0)) is None
    made = abandonment_of(config(rate="100%", delay="2s"))
    assert made is not None
    assert (made.delay_ns, made.is_chosen(5, 0)) == (2_000_000_000, True)
