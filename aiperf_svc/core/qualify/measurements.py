"""The measurements of a qualification's trials, for any tool, the rules for judging them, and the
detection of outliers.
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
"""Labels of steps. TEST is the tool's own name of the step."""
STAGE, ROUND, WITHOUT, REPEAT = (
    "workload.stage",
    "workload.round",
    "workload.without",
    "workload.repeat",
)
"""Keys of the config that a trial sets."""
SUSPECTS = "suspects"
"""Round of the trial that repeats the suspects of a stage."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one node, one path, or all nodes together in one trial."""

    stage: str
    nodes: tuple[str, ...]
    """One node, source and target of a path, or none: all nodes."""
    values: dict[str, float]
    """Check to value; empty if it failed."""
    problem: str = ""
    round: int = 0
    """From 1, only in a stage of pairs."""
    is_repeat: bool = False
    """Whether it repeats a suspect with nothing else running."""


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    nodes: NodesOf
    workload: str
    rounds: int = 1
    """Trials that measure the stage, without repeats of suspects."""


def measurements_of(
    steps: Iterable[StepResult], parameters: Mapping[str, Any]
) -> tuple[Measurement, ...]:
    """Return the measurements of a trial with these parameters. Steps on the same nodes are merged;
    the value of a check is the mean over its repetitions."""
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
            values={}
            if problems
            else {check: fmean(measured) for check, measured in values.items()},
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
    """Return the name of each rank, from its number and node: the node's name, with the rank's
    number if several ranks share a node."""
    nodes = [node for _, node in places]
    return {
        number: node if nodes.count(node) == 1 else f"{node} rank {number}"
        for number, node in places
    }


MIN_NODES = 8
"""Minimum number of nodes for the detection of outliers."""
Z_LIMIT = 3.5
Z_SCALE = 0.6745
"""Expected ratio of the median absolute deviation to the standard deviation of a normal
distribution."""
SHARE = 0.95
"""A value below this share of the median, the baseline or good nodes is worse."""

KeyT = TypeVar("KeyT")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a check, in the unit of its metric."""

    check: str
    value: float | None = None
    """Worst value that passes."""
    share: float | None = None
    """Worst share of the baseline that passes."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The references for judging measurements."""

    stages: tuple[StagePlan, ...]
    checks: tuple[CheckInfo, ...]
    """All judged checks."""
    limits: tuple[Limit, ...] = ()
    baseline: dict[str, dict[str, float]] = {}
    """Check to node to earlier value. The node `""` is the median of all nodes."""

    def checks_of(self, stage: str) -> tuple[CheckInfo, ...]:
        return tuple(check for check in self.checks if check.stage == stage)


def outliers(values: Mapping[KeyT, float], better: Better) -> set[KeyT]:
    """Return the keys of values that are worse than the others. Latencies are compared by their
    reciprocals, so the same noise yields as many outliers as for rates."""
    if len(values) < MIN_NODES or not better:
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
