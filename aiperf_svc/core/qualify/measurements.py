"""What the trials of a qualification measured, whatever the tool."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.core.qualify.result import NodesOf
from aiperf_svc.core.results.tool_result import ToolResult

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
    """A stage as it is planned."""

    name: str
    nodes: NodesOf
    workload: str
    rounds: int = 1
    """Trials that measure it; those that repeat suspects not counted."""


def measurements_of(result: ToolResult, parameters: Mapping[str, Any]) -> tuple[Measurement, ...]:
    """Return what a trial with these parameters measured. Steps of the same nodes are joined."""
    is_repeat = parameters.get(ROUND) == SUSPECTS
    joined: dict[tuple[str, ...], tuple[dict[str, float], list[str]]] = {}
    for step in result.steps:
        if step.was_retried:
            continue
        values, problems = joined.setdefault(_nodes(step.labels), ({}, []))
        if step.problem:
            problems.append(step.problem)
        else:
            values.update(step.values)
    return tuple(
        Measurement(
            stage=str(parameters.get(STAGE, "")),
            nodes=nodes,
            values={} if problems else values,
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
