"""Decides which of several stacks that wait has room in a cluster beside those that are there or
come up. A stack whose pods do not all have nodes yet counts by its plan, any other by its pods."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.autoscaling import adds_nodes
from aiperf_svc.adapters.cluster.preflight.capacity import place, rooms
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.stack import StackPlan

Object = Mapping[str, Any]
ENDED = ("Succeeded", "Failed")


class SharedRoom:
    """The room of a cluster for stacks of one experiment."""

    def __init__(self, cluster: Cluster, *, is_auto: bool) -> None:
        self._cluster, self._is_auto = cluster, is_auto

    async def find(self, running: Sequence[StackPlan], waiting: Sequence[StackPlan]) -> int | None:
        """Return which of the waiting stacks, the first one that can, has room; None if none has.
        Where the room is not known, or nodes are added for pods, it is the first, unless the number
        of stacks is to follow from the room. Raises ConfigError if that cannot be known,
        Unreachable."""
        try:
            nodes = (await self._cluster.get("/api/v1/nodes"))["items"]
            placed = {"fieldSelector": "spec.nodeName!="}
            pods = (await self._cluster.get("/api/v1/pods", **placed))["items"]
        except Refused as error:
            if self._is_auto:
                raise ConfigError(
                    "experiment.parallel: auto needs to list nodes and pods, which is not allowed "
                    f"({error}); give the number of stacks"
                ) from error
            return 0
        found = first_with_room(running, waiting, nodes, pods)
        if found is None and not self._is_auto and await adds_nodes(self._cluster):
            return 0
        return found


def first_with_room(
    running: Sequence[StackPlan],
    waiting: Sequence[StackPlan],
    nodes: Sequence[Object],
    pods: Sequence[Object],
) -> int | None:
    """Return the place of the first waiting stack that fits; None if none does. Pure."""
    coming = [plan for plan in running if _with_nodes(plan, pods) < plan.totals.pods]
    names = {plan.identity.stack for plan in coming}
    free = rooms(nodes, [pod for pod in pods if _stack_of(pod) not in names], stack="")
    for plan in coming:
        free, _ = place(plan, free)
    for number, plan in enumerate(waiting):
        _, unplaced = place(plan, free)
        if not unplaced:
            return number
    return None


def _with_nodes(plan: StackPlan, pods: Sequence[Object]) -> int:
    """Return how many pods of a stack have a node and have not ended."""
    return sum(
        _stack_of(pod) == plan.identity.stack
        and pod.get("status", {}).get("phase") not in ENDED
        and bool(pod.get("spec", {}).get("nodeName"))
        for pod in pods
    )


def _stack_of(pod: Object) -> str | None:
    name: str | None = (pod["metadata"].get("labels") or {}).get(STACK_LABEL)
    return name
