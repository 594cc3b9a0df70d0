"""Pairs of ranks that a benchmark of two ranks measures."""

import msgspec
import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.pairs import pair_labels, pair_name, pairs
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.steps import Rank

RANKS = tuple(
    Rank(number=n, role="rank", address=f"10.0.0.{n}", node=f"node-{n}", work="/w", volume="/v",
         agent="/a") for n in range(3)
)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "is_directed", "expected"),
    [
        ("one", True, [(0, 1)]),
        ("one", False, [(0, 1)]),
        ("all", False, [(0, 1), (0, 2), (1, 2)]),
        ("all", True, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
    ],
)
def test_a_symmetric_test_measures_each_pair_once_and_a_directed_one_both_ways(
    asked: str, is_directed: bool, expected: list[tuple[int, int]]
) -> None:
    config = parse_benchmark(
        {
            "workload": {
                "kind": "command",
                "command": ["true"],
                "metrics": {"n": {"unit": "s", "pattern": "(x)"}},
            },
            "deployment": {"ranks": {"pairs": asked} | ({"count": 3} if asked == "all" else {})},
        },
        "",
    )
    assert isinstance(config, WorkloadConfig)
    found = pairs(config, RANKS, is_directed=is_directed)
    assert [(a.number, b.number) for a, b in found] == expected


def test_a_pair_is_named_by_its_nodes() -> None:
    pair = (RANKS[2], RANKS[0])
    assert pair_name(pair) == "node-2 to node-0"
    assert pair_labels(pair) == {"from": "node-2", "to": "node-0"}


def test_both_directions_between_ranks_on_one_node_have_names_of_their_own() -> None:
    one, other = RANKS[0], msgspec.structs.replace(RANKS[1], node="node-0")
    assert pair_name((one, other)) == "node-0 rank 0 to node-0 rank 1"
    assert pair_name((other, one)) == "node-0 rank 1 to node-0 rank 0"
    assert pair_labels((one, other)) == {"from": "node-0 rank 0", "to": "node-0 rank 1"}
