"""The pairs of ranks that a benchmark of two ranks measures, and the names of its steps."""

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.steps import Rank

Pair = tuple[Rank, Rank]


def pairs(
    config: WorkloadConfig[Any], ranks: Sequence[Rank], *, is_directed: bool
) -> tuple[Pair, ...]:
    """Return ranks 0 and 1, or every pair with `deployment.ranks.pairs: all`: both directions of a
    directed test, one of a symmetric test."""
    if config.deployment.ranks.pairs == "one":
        return ((ranks[0], ranks[1]),)
    return tuple((permutations if is_directed else combinations)(ranks, 2))


def pair_name(pair: Pair) -> str:
    """Return the name of the step that measures a pair."""
    return " to ".join(_node_names(pair))


def pair_labels(pair: Pair) -> dict[str, str]:
    """Return the labels of the step that measures a pair."""
    source, target = _node_names(pair)
    return {"from": source, "to": target}


def _node_names(pair: Pair) -> tuple[str, str]:
    """Return the nodes of a pair, with the numbers of the ranks if they share a node."""
    source, target = pair
    if source.node == target.node:
        return f"{source.node} rank {source.number}", f"{target.node} rank {target.number}"
    return source.node, target.node
