"""The result of a qualification: a verdict for each node and each path between two nodes.

The fields have the names and the order of the keys of qualify.json.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

import msgspec

SCHEMA = "qualify/1"
"""`schema_version` of qualify.json. It is raised when a key changes its meaning."""
NodesOf = Literal["alone", "pairs", "all"]
"""What a stage measures: each node alone, pairs of nodes, or all nodes together."""
Better = Literal["higher", "lower", ""]


class Verdict(StrEnum):
    """Verdict on a node or a path, from best to worst."""

    PASS = "pass"
    DEGRADED = "degraded"
    """Worse than its baseline, or slow only while other pairs are measured."""
    NOT_MEASURED = "not-measured"
    """No value, which counts as failed."""
    FAIL = "fail"

    @property
    def has_failed(self) -> bool:
        """True if the node or path is not fit for use."""
        return self in (Verdict.FAIL, Verdict.NOT_MEASURED)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of these verdicts; pass if there are none."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.PASS)


class CheckInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A judged metric of a stage."""

    check: str
    """`iperf_bandwidth`: the stage and the metric."""
    stage: str
    nodes: NodesOf
    name: str
    unit: str
    better: Better


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a node, of a path, or of all nodes together."""

    check: str
    verdict: Verdict
    value: float | None
    """None: not measured. For a node in a stage of pairs, the median over its paths."""
    limit: float | None = None
    """The limit that decided the verdict, or the limit closest to the value; None: none
    applies."""
    median: float | None = None
    """Median over all nodes, or over all paths."""
    repeated: float | None = None
    """The value when it was measured again as a suspect, with nothing else running; None: not
    repeated."""
    peer: str = ""
    """For a node in a stage of pairs, the peer with its worst value."""
    reason: str = ""
    """Why the verdict is not `pass`."""


class NodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a node."""

    node: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]


class PathResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a path that is not `pass`."""

    source: str
    target: str
    result: CheckResult


class PairValue(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a pair of nodes in its round."""

    check: str
    source: str
    target: str
    value: float


class StageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, and how much of it ran."""

    name: str
    nodes: NodesOf
    workload: str
    """Kind of its tool."""
    planned: int
    """Its trials: rounds of pairs, or 1."""
    ended: int


class Qualification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a qualification."""

    schema_version: str = SCHEMA
    result: str
    """One sentence for people."""
    ended_at: str = ""
    """End of its last trial in UTC, in a form allowed in Kubernetes labels: `20261126T101530Z`."""
    warnings: tuple[str, ...] = ()
    """What makes the values doubtful, whatever the verdicts."""
    stages: tuple[StageFacts, ...]
    checks: tuple[CheckInfo, ...]
    nodes: tuple[NodeResult, ...]
    paths: tuple[PathResult, ...]
    """Paths that did not pass."""
    all: tuple[CheckResult, ...]
    """Checks of stages that measure all nodes together."""
    pairs: tuple[PairValue, ...]
    """Values of all pairs, of every check of a stage of pairs."""

    @property
    def has_failed(self) -> bool:
        """True if a node, a path or all nodes together failed."""
        verdicts = [node.verdict for node in self.nodes]
        verdicts += [path.result.verdict for path in self.paths]
        verdicts += [check.verdict for check in self.all]
        return any(verdict.has_failed for verdict in verdicts)
