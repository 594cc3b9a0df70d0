"""What the trials of a qualification measured, whatever the tool, what it is compared with, and
which values of many are worse than the others.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, TypeVar

import msgspec

from aiperf_svc.core.qualify.result import Better, CheckInfo, NodesOf
from aiperf_svc.core.results.tool_result import StepResult

NODE, SOURCE, TARGET, TEST = "node", "from", "to", "test"
"""Labels of steps. TEST is the name that the tool itself gives to the step."""
STAGE, ROUND, WITHOUT, REPEAT = (
    "workload.stage",
    "workload.round",
    "workload.without",
    "workload.repeat",
)
"""Keys of the config that a trial sets."""
SUSPECTS = "suspects"
"""Round of the trial that measures the suspects of a stage again."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one node, one path, or all nodes together in one trial."""

    stage: str
    nodes: tuple[str, ...]
    """One node, source and target of a path, or none: all nodes."""
    values: dict[str, float]
    """Check to value; empty if it failed."""
    problem: str = ""
    round: int = 0
    """From 1, in a stage of pairs."""
    is_repeat: bool = False
    """Whether it was made because of a suspect, with nothing else running."""


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    nodes: NodesOf
    workload: str
    rounds: int = 1
    """Trials that measure it; those that repeat suspects not counted."""


def measurements_of(
    steps: Iterable[StepResult], parameters: Mapping[str, Any]
) -> tuple[Measurement, ...]:
    """Return what a trial with these parameters measured. Steps of the same nodes are joined; the
    value of a check is the mean over its repetitions."""
    is_repeat = parameters.get(ROUND) == SUSPECTS
    joined: dict[tuple[str, ...], tuple[defaultdict[str, list[float]], list[str]]] = {}
    for step in steps:
        if step.was_retried:
            continue
        values, problems = joined.setdefault(_nodes(step.labels), (defaultdict(list), []))
        if step.problem:
            problems.append(step.problem)
        else:
            for check, value in step.values.items():
                values[check].append(value)
    return tuple(
        Measurement(
            stage=str(parameters.get(STAGE, "")),
            nodes=nodes,
            values={} if problems else {check: fmean(of) for check, of in values.items()},
            problem="; ".join(problems),
            round=0 if is_repeat else int(parameters.get(ROUND) or 0),
            is_repeat=is_repeat,
        )
        for nodes, (values, problems) in joined.items()
    )


def _nodes(labels: Mapping[str, str]) -> tuple[str, ...]:
    if NODE in labels:
        return (labels[NODE],)
    if SOURCE in labels:
        return labels[SOURCE], labels[TARGET]
    return ()


def node_names(places: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Return the name of each rank, from its number and node: that of the node, with the number of
    the rank where several share a node."""
    nodes = [node for _, node in places]
    return {
        number: node if nodes.count(node) == 1 else f"{node} rank {number}"
        for number, node in places
    }


FEWEST_NODES = 8
"""Nodes below which no outliers are looked for."""
Z_LIMIT = 3.5
Z_SCALE = 0.6745
"""Expected ratio of the median absolute deviation to the standard deviation of a normal
distribution."""
SHARE = 0.95
"""Share of the median, of the baseline or of good nodes below which a value is worse than they."""

KeyT = TypeVar("KeyT")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a check, in the unit of its metric."""

    check: str
    value: float | None = None
    """Worst value that passes."""
    share: float | None = None
    """Worst share of the baseline that passes."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the measurements are compared with."""

    stages: tuple[StagePlan, ...]
    checks: tuple[CheckInfo, ...]
    """All that are judged."""
    limits: tuple[Limit, ...] = ()
    baseline: dict[str, dict[str, float]] = {}
    """Check to node to an earlier value. The node `""` is the median of all nodes."""

    def checks_of(self, stage: str) -> tuple[CheckInfo, ...]:
        return tuple(check for check in self.checks if check.stage == stage)


def outliers(values: Mapping[KeyT, float], better: Better) -> set[KeyT]:
    """Return the keys of values that are worse than the others. Of latencies the reciprocals are
    compared: the same noise then gives as many outliers as of rates."""
    if len(values) < FEWEST_NODES or not better:
        return set()
    if better == "lower":
        rates = {key: 1 / value if value else math.inf for key, value in values.items()}
        return outliers(rates, "higher")
    centre = median(values.values())
    deviation = median(abs(value - centre) for value in values.values())
    return {
        key
        for key, value in values.items()
        if is_worse(value, centre, better) and Z_SCALE * abs(value - centre) > Z_LIMIT * deviation
    }


def is_worse(value: float, than: float, better: Better, share: float = SHARE) -> bool:
    """Return whether a value is worse than this share of another."""
    return than < value * share if better == "lower" else value < than * share
