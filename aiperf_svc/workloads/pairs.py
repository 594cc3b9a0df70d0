"""Which pairs of ranks a benchmark of two ranks measures, and what its steps are called."""

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.base import Rank

Pair = tuple[Rank, Rank]


def pairs(
    config: WorkloadConfig[Any], ranks: Sequence[Rank], *, is_directed: bool
) -> tuple[Pair, ...]:
    """Ranks 0 and 1, or every pair with `deployment.ranks.pairs: all`: both directions of a
    directed test, one of a symmetric test."""
    if config.deployment.ranks.pairs == "one":
        return ((ranks[0], ranks[1]),)
    return tuple((permutations if is_directed else combinations)(ranks, 2))


def pair_name(pair: Pair) -> str:
    """Name of the step that measures a pair."""
    return " to ".join(_places(pair))


def pair_labels(pair: Pair) -> dict[str, str]:
    """Labels of the step that measures a pair."""
    source, target = _places(pair)
    return {"from": source, "to": target}


def _places(pair: Pair) -> tuple[str, str]:
    """The nodes of a pair; the ranks' numbers tell them apart when they share a node."""
    source, target = pair
    if source.node == target.node:
        return f"{source.node} rank {source.number}", f"{target.node} rank {target.number}"
    return source.node, target.node
