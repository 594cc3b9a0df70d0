"""Which of several targets is next."""

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.load.target_addresses import shift_of
from tests.support.small_configs import small_config


def config(seed: int, *urls: str) -> BenchmarkConfig:
    return small_config("http://a:1", endpoint={"urls": list(urls)}, random_seed=seed)


def test_targets_take_turns_from_a_seeded_start() -> None:
    for seed, numbers in ((0, [0, 1, 2, 0, 1, 2, 0]), (4, [1, 2, 0, 1, 2, 0, 1])):
        shift = shift_of(config(seed, "http://b:1", "http://c:1"))
        assert [(i + shift) % 3 for i in range(7)] == numbers


def test_one_target_has_all_requests() -> None:
    assert shift_of(config(5)) == 0
