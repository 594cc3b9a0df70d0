"""In simulated clusters, the slow node or path is found and no other is accused.

The clusters are seeded. Their values have a noise of 2% and a common drift of 10%.
"""

from collections.abc import Sequence
from random import Random

import pytest

from aiperf_svc.core.qualify.result import Better, NodesOf, Qualification
from tests.support.fake_nodes import FakeNodes

MAX_MISTAKES = 0.02
"""Allowed share of clusters whose culprit is not found, and of those with a false one."""


def accused(found: Qualification) -> set[tuple[str, ...]]:
    """Return the nodes and paths that failed."""
    nodes = {(node.node,) for node in found.nodes if node.verdict.has_failed}
    paths = {
        tuple(sorted((path.source, path.target)))
        for path in found.paths
        if path.result.verdict.has_failed
    }
    return nodes | paths


def mistakes(
    culprit: str,
    count: int,
    clusters: int,
    drift: float,
    *,
    stages: Sequence[NodesOf] = ("pairs",),
    better: Better = "higher",
) -> tuple[int, int]:
    """Return in how many clusters the culprit was missed, and in how many another was accused."""
    missed = wrong = 0
    for seed in range(clusters):
        names = Random(seed).sample([f"n{number}" for number in range(count)], 2)
        culprits: dict[str, set[tuple[str, ...]]] = {
            "node": {(names[0],)},
            "path": {tuple(sorted(names))},
            "none": set(),
        }
        expected = culprits[culprit]
        cluster = FakeNodes(
            count,
            seed=seed,
            noise=0.02,
            drift=drift,
            nodes={names[0]: 0.8} if culprit == "node" else {},
            paths=dict.fromkeys([(names[0], names[1]), (names[1], names[0])], 0.7)
            if culprit == "path"
            else {},
            better=better,
        )
        found = accused(cluster.qualify(cluster.rules(stages))[0])
        missed += not expected <= found
        wrong += bool(found - expected)
    return missed, wrong


@pytest.mark.parametrize("drift", [0.0, 0.1], ids=["steady", "drift"])
# A cluster of 33 nodes costs as much time as twelve of 8.
@pytest.mark.parametrize(("count", "clusters"), [(8, 100), (16, 100), (33, 30)])
@pytest.mark.parametrize("culprit", ["node", "path", "none"])
def test_only_the_slow_node_or_path_is_accused(
    culprit: str, count: int, clusters: int, drift: float
) -> None:
    most = MAX_MISTAKES * clusters
    assert max(mistakes(culprit, count, clusters, drift)) <= most


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize("culprit", ["node", "path", "none"])
def test_stages_of_all_kinds_find_the_culprit(culprit: str, better: Better) -> None:
    found = mistakes(culprit, 16, 50, 0.1, stages=("alone", "pairs", "all"), better=better)
    assert max(found) <= MAX_MISTAKES * 50


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize("count", [8, 33])
@pytest.mark.parametrize("culprit", ["node", "none"])
def test_slow_node_is_found_alone(culprit: str, count: int, better: Better) -> None:
    found = mistakes(culprit, count, 100, 0.1, stages=("alone",), better=better)
    assert max(found) <= MAX_MISTAKES * 100
