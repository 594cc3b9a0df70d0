"""The order in which the entries of a dataset are sent."""

from typing import Any

import numpy as np
import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.core.load.entry_order import EntryOrder, order_of
from aiperf_svc.core.load.phase_plan import plan_phase
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.dataset import DatasetShape
from tests.support.small_configs import small_benchmark


def config(order: str, load: dict[str, Any] | None = None, **dataset: Any) -> BenchmarkConfig:
    load = load or {"concurrency": 1, "requests": 20}
    data = small_benchmark(load=load, dataset={"order": order} | dataset, random_seed=3)
    return parse_config(data, "test")


def test_shuffled_order_sends_each_entry_once_per_pass() -> None:
    order = EntryOrder("shuffled", 100, 1)
    sent = [order.entry(index) for index in range(1_000)]
    passes = [sent[start : start + 100] for start in range(0, 1_000, 100)]
    assert all(sorted(each) == [*range(100)] for each in passes)
    assert passes[0] == [*range(100)], "the dataset is built in the order of its first pass"
    assert len({tuple(each) for each in passes}) == 10


def test_every_entry_is_equally_likely_at_every_place() -> None:
    order, size, passes = EntryOrder("shuffled", 8, 1), 8, 8_000
    counts = np.zeros((size, size))
    for index, entry in enumerate(order.entries(size * (passes + 1))[size:]):
        counts[index % size, entry] += 1
    # Each pass adds one to every row and column: the sum has (8 - 1)² degrees of freedom and is 8/7
    # times as large as that of independent draws. Above 95 for one in 10,000 seeds.
    squares = ((counts - passes / size) ** 2 / (passes / size)).sum()
    assert squares * (size - 1) / size < 95


def test_random_draws_each_entry_as_often_and_independently() -> None:
    size, count = 10, 100_000
    sent = EntryOrder("random", size, 1).entries(count)
    counts = np.bincount(sent, minlength=size)
    # With 9 degrees of freedom: above 33.7 for one in 10,000 seeds.
    assert ((counts - count / size) ** 2 / (count / size)).sum() < 33.7
    for lag in (1, size):
        alike = float(np.mean(sent[lag:] == sent[:-lag]))
        assert alike == pytest.approx(1 / size, abs=4 * (0.09 / count) ** 0.5)


@pytest.mark.parametrize("how", ["shuffled", "random"])
def test_order_depends_on_the_seed_only(how: Any) -> None:
    ahead = EntryOrder(how, 7, 5)
    whole = ahead.entries(50).tolist()
    assert [ahead.entry(index) for index in range(50)] == whole
    stride = EntryOrder(how, 7, 5)
    assert [stride.entry(index) for index in range(1, 50, 3)] == whole[1::3]
    back = EntryOrder(how, 7, 5)
    assert [back.entry(index) for index in (40, 2, 41)] == [whole[40], whole[2], whole[41]]
    assert EntryOrder(how, 7, 6).entries(50).tolist() != whole


def test_sequential_loads_have_no_other_order() -> None:
    users = {"user_centric": {"users": 2, "rate": 1}, "duration": "9s"}
    conversations = {"turns": {"number": {"mean": 3}}}
    assert order_of(config("sequential"), 5) is None
    assert order_of(config("shuffled", users, **conversations), 5) is None
    assert order_of(config("shuffled", kind="azure_trace", file="f"), 5) is None
    assert order_of(config("shuffled"), 5) is not None


@pytest.mark.parametrize(
    ("load", "dataset", "message"),
    [
        (
            None,
            {"kind": "azure_trace", "file": "f"},
            "rows of dataset.kind azure_trace are read one after",
        ),
        (
            {"user_centric": {"users": 2, "rate": 1}, "duration": "9s"},
            {"turns": {"number": {"mean": 3}}},
            "take one conversation after the other",
        ),
    ],
)
def test_sequential_entries_are_not_drawn(load: Any, dataset: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config("random", load, **dataset)


@pytest.mark.parametrize("how", ["shuffled", "random"])
def test_request_count_follows_the_drawn_conversations(how: str) -> None:
    turns = np.array([1, 5, 2, 9], dtype="<u2")
    settings = config(how, {"concurrency": 1, "requests": 100})
    shape = DatasetShape("run", "dataset-manager", 1, 4, 0, turns.tobytes())
    plan = plan_phase(Phase.PROFILING, settings, shape)
    assert plan is not None
    assert plan.credits is not None
    order = order_of(settings, 4)
    assert order is not None
    taken = [int(turns[order.entry(index)]) for index in range(plan.credits)]
    if plan.last_turns:
        assert plan.last_turns < taken[-1]
        taken[-1] = plan.last_turns
    assert sum(taken) == 100
