"""Simulated clusters: the slow node or path is found, and no other is accused.

Of 100 seeded clusters each. The noise of a value is 2%, and the drift of the whole cluster 10%.
"""

from random import Random

import pytest

from aiperf_svc.core.qualify.result import Qualification
from tests.support.fake_nodes import FakeNodes

SEEDS = range(100)
RIGHT, WRONG = 98, 2
"""Fewest cases with the right culprit, and most with a false one."""


def accused(found: Qualification) -> set[tuple[str, ...]]:
    """The nodes and paths that failed."""
    nodes = {(node.node,) for node in found.nodes if node.verdict.has_failed}
    paths = {
        tuple(sorted((path.source, path.target)))
        for path in found.paths
        if path.result.verdict.has_failed
    }
    return nodes | paths


@pytest.mark.parametrize("drift", [0.0, 0.1], ids=["steady", "drift"])
@pytest.mark.parametrize("count", [8, 16, 33])
@pytest.mark.parametrize("culprit", ["node", "path", "none"])
def test_slow_node_or_path_is_found_and_no_other_accused(
    culprit: str, count: int, drift: float
) -> None:
    right = wrong = 0
    for seed in SEEDS:
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
        )
        found = accused(cluster.qualify(cluster.rules(["pairs"]))[0])
        right += expected <= found
        wrong += bool(found - expected)
    assert right >= RIGHT
    assert wrong <= WRONG
