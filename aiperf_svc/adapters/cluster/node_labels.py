"""Labels nodes with the verdicts of a qualification. It neither taints nor cordons nodes: the
cluster decides how to use the labels."""

from collections.abc import Callable
from typing import Any, Protocol

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.core.qualify.result import NodeResult, Qualification
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json

LABEL, TIME_LABEL = "aiperf.dev/qualified", "aiperf.dev/qualified-at"
REASON_ANNOTATION = "aiperf.dev/qualified-reason"
MAX_REASON_LENGTH = 1_000


class Patches(Protocol):
    """The methods of a cluster connection that labelling needs."""

    async def patch(self, path: str, changes: Json) -> Any:
        """Merge changes into an object. Raises Refused, Unreachable."""
        ...


async def label_nodes(
    cluster: Patches, found: Qualification, *, say: Callable[[str], None]
) -> None:
    """Set the labels and the annotation of each node. Requires the right to patch nodes. Raises
    EnvironmentProblem with the names of the nodes that cannot be patched, after patching all
    others; Unreachable.
    """
    refused = []
    for node in found.nodes:
        try:
            await cluster.patch(f"/api/v1/nodes/{node.node}", changes_of(node, found.ended_at))
        except Refused as error:
            refused.append(f"{node.node}: {error}")
        else:
            say(f"{node.node}: {LABEL}={node.verdict.value}")
    if refused:
        few = "; ".join(refused[:8]) + (" …" if len(refused) > 8 else "")
        raise EnvironmentProblem(f"{len(refused)} of {len(found.nodes)} nodes not labelled: {few}")


def changes_of(node: NodeResult, ended_at: str) -> Json:
    """Return the merge patch of a node. Without a reason, the patch removes the reason of an
    earlier qualification."""
    reasons = "; ".join(f"{each.check}: {each.reason}" for each in node.checks if each.reason)
    return {
        "metadata": {
            "labels": {LABEL: node.verdict.value, TIME_LABEL: ended_at},
            "annotations": {REASON_ANNOTATION: reasons[:MAX_REASON_LENGTH] or None},
        }
    }
