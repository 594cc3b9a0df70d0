"""The pairs of ranks that a benchmark of two ranks measures, their order and concurrency, and the
names of the steps."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations, permutations
from typing import Any

import msgspec

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.steps import Rank, Step

Pair = tuple[Rank, Rank]


def pairs(
    config: WorkloadConfig[Any], ranks: Sequence[Rank], *, is_directed: bool
) -> tuple[Pair, ...]:
    """Return ranks 0 and 1, or every pair if `deployment.ranks.pairs` is all or rounds: in both
    directions for a directed test, once for a symmetric test."""
    match config.deployment.ranks.pairs:
        case "one":
            return ((ranks[0], ranks[1]),)
        case "all":
            return tuple((permutations if is_directed else combinations)(ranks, 2))
        case "rounds":
            found: list[Pair] = []
            for each in circle_rounds(len(ranks)):
                forward = [(ranks[one], ranks[other]) for one, other in each]
                found += forward
                if is_directed:
                    found += [(other, one) for one, other in forward]
            return tuple(found)


@cache
def circle_rounds(count: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return rounds of disjoint pairs of the numbers from 0 that contain each pair once: the circle
    method of round-robin tournaments. N numbers need N - 1 rounds, or N if N is odd, where one
    number rests in each."""
    places = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        opposite = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append(
            tuple((a, b) for a, b in opposite if a is not None and b is not None),
        )
        # The first stays, and all others move by one position.
        places = [places[0], places[-1], *places[1:-1]]
    return tuple(rounds)


def group_steps(
    steps: Iterable[Step], ranks: Sequence[Rank], *, max_nodes: int | None = None
) -> tuple[Step, ...]:
    """Group consecutive steps as long as they use different nodes and a group has at most
    `max_nodes`. Two steps on one node would compete for it."""
    nodes = {rank.number: rank.node for rank in ranks}
    grouped: list[Step] = []
    number, used, kind = 0, set[str](), None
    for step in steps:
        own = {nodes[rank] for rank in step.ranks}
        is_full = max_nodes is not None and len(used | own) > max_nodes
        if own & used or is_full or step.is_measured is not kind:
            number, used, kind = number + 1, set(), step.is_measured
        used |= own
        grouped.append(msgspec.structs.replace(step, group=number))
    return tuple(grouped)


def pair_name(pair: Pair) -> str:
    """Return the name of the step that measures a pair."""
    return " to ".join(_node_names(pair))


def pair_labels(pair: Pair) -> dict[str, str]:
    """Return the labels of the step that measures a pair."""
    source, target = _node_names(pair)
    return {"from": source, "to": target}


def _node_names(pair: Pair) -> tuple[str, str]:
    """Return the nodes of a pair, with rank numbers if both ranks share a node."""
    source, target = pair
    if source.node == target.node:
        return f"{source.node} rank {source.number}", f"{target.node} rank {target.number}"
    return source.node, target.node
