"""Changes by an event that must be undone, recorded on the root of the stack.

A cordoned node and a scaled Deployment outside of the stack outlive the stack. Before either is
changed, the original value is written into an annotation of the stack's Namespace, or of its anchor
in a shared namespace. The runner removes the annotation when it has undone the event. A removal of
the stack, also by `gc` after a killed runner, undoes what is recorded there.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.domain.json_objects import Json

UNDO_ANNOTATION = "aiperf.dev/undo"


class Undo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The way back from one event. Only one event is under way at a time."""

    kind: Literal["uncordon", "scale"]
    name: str
    """Name of the Node, or of the Deployment."""
    uid: str
    namespace: str = ""
    replicas: int = 0

    @property
    def path(self) -> str:
        """Path of the object."""
        if self.kind == "uncordon":
            return f"/api/v1/nodes/{self.name}"
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}"

    @property
    def text(self) -> str:
        """What undoing it does."""
        if self.kind == "uncordon":
            return f"node {self.name} is uncordoned"
        return f"Deployment {self.namespace}/{self.name} is scaled to {self.replicas} again"

    async def carry_out(self, cluster: Cluster) -> bool:
        """Undo it; False if the object is gone or another one. Raises Refused, Unreachable."""
        try:
            found = await cluster.get(self.path)
            if found["metadata"]["uid"] != self.uid:
                return False
            if self.kind == "uncordon":
                await cluster.patch(self.path, {"spec": {"unschedulable": None}})
            else:
                await cluster.patch(f"{self.path}/scale", {"spec": {"replicas": self.replicas}})
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True


async def record_undo(cluster: Cluster, root: str, undo: Undo | None) -> None:
    """Record the original value on the root at this path; None removes the record. Raises Refused,
    Unreachable."""
    text = None if undo is None else msgspec.json.encode(undo).decode()
    changes: Json = {"metadata": {"annotations": {UNDO_ANNOTATION: text}}}
    await cluster.patch(root, changes)


async def undo_recorded(
    cluster: Cluster, roots: Iterable[ObjectRef], say: Callable[[str], None]
) -> None:
    """Undo what a runner has left, by the records on the roots of a stack. Raises Refused,
    Unreachable."""
    for root in roots:
        text = root.annotations.get(UNDO_ANNOTATION)
        if not text:
            continue
        try:
            undo = msgspec.json.decode(text, type=Undo)
        except (msgspec.DecodeError, msgspec.ValidationError):
            say(f"{root}: annotation {UNDO_ANNOTATION} cannot be read: {text!r}")
            continue
        if await undo.carry_out(cluster):
            say(f"an event was not undone: {undo.text}")
        await record_undo(cluster, root.path, None)
