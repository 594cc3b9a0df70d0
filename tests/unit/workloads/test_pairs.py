"""Pairs of ranks that a two-rank benchmark measures."""

from itertools import combinations

import msgspec
import pytest

from aiperf_svc.workloads.pairs import circle_rounds, group_steps, pair_labels, pair_name, pairs
from aiperf_svc.workloads.steps import Command, Step
from tests.support.tool_runs import make_ranks, tool_config

RANKS = make_ranks(3)


@pytest.mark.parametrize(
    ("asked", "is_directed", "expected"),
    [
        ("one", True, [(0, 1)]),
        ("one", False, [(0, 1)]),
        ("all", False, [(0, 1), (0, 2), (1, 2)]),
        ("all", True, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
        ("rounds", False, [(1, 2), (0, 2), (0, 1)]),
        ("rounds", True, [(1, 2), (2, 1), (0, 2), (2, 0), (0, 1), (1, 0)]),
    ],
)
def test_directed_test_measures_pairs_both_ways(
    asked: str, is_directed: bool, expected: list[tuple[int, int]]
) -> None:
    config = tool_config(
        "command",
        on={"pairs": asked} | ({"count": 3} if asked != "one" else {}),
        command=["true"],
        metrics={"n": {"unit": "s", "pattern": "(x)"}},
    )
    found = pairs(config, RANKS, is_directed=is_directed)
    assert [(a.number, b.number) for a, b in found] == expected


def test_a_pair_is_named_by_its_nodes() -> None:
    pair = (RANKS[2], RANKS[0])
    assert pair_name(pair) == "node-2 to node-0"
    assert pair_labels(pair) == {"from": "node-2", "to": "node-0"}


def test_directions_on_one_node_have_own_names() -> None:
    one, other = RANKS[0], msgspec.structs.replace(RANKS[1], node="node-0")
    assert pair_name((one, other)) == "node-0 rank 0 to node-0 rank 1"
    assert pair_name((other, one)) == "node-0 rank 1 to node-0 rank 0"
    assert pair_labels((one, other)) == {"from": "node-0 rank 0", "to": "node-0 rank 1"}


@pytest.mark.parametrize("count", [2, 3, 8, 16, 33])
def test_rounds_have_each_pair_exactly_once(count: int) -> None:
    rounds = circle_rounds(count)
    assert len(rounds) == (count if count % 2 else count - 1)
    for each in rounds:
        members = [rank for pair in each for rank in pair]
        assert len(set(members)) == len(members) == count - count % 2
    found = sorted(tuple(sorted(pair)) for each in rounds for pair in each)
    assert found == list(combinations(range(count), 2))


def step_on(name: str, *ranks: int) -> Step:
    commands = tuple(Command(rank=rank, argv=("x",)) for rank in ranks)
    return Step(name=name, commands=commands, timeout_ns=1)


@pytest.mark.parametrize(
    ("nodes", "max_nodes", "expected"),
    [
        ((0, 1, 2, 3), None, [1, 1, 2, 2]),
        ((0, 1, 2, 3), 2, [1, 2, 3, 4]),
        ((0, 0, 0, 0), None, [1, 2, 3, 4]),
    ],
    ids=["nodes of their own", "two nodes at once", "one node"],
)
def test_steps_of_different_nodes_form_a_group(
    nodes: tuple[int, ...], max_nodes: int | None, expected: list[int]
) -> None:
    ranks = [
        msgspec.structs.replace(RANKS[0], number=n, node=f"node-{at}") for n, at in enumerate(nodes)
    ]
    steps = [step_on("a", 0, 1), step_on("b", 2, 3), step_on("c", 1, 2), step_on("d", 0, 3)]
    found = group_steps(steps, ranks, max_nodes=max_nodes)
    assert [each.group for each in found] == expected
