"""Undoes changes by events. Records of them are on the stack's root and on the changed object.

A cordoned node or a scaled foreign Deployment outlives the stack, and a change inside the stack
would be the baseline of the next trial. Before a change, the original value is written into an
annotation of the stack's Namespace, or of its anchor in a shared namespace. The change itself adds
the same record to the object. It remains there when the time to live removes the stack of a killed
runner. The runner removes both records after undoing the event. A runner that resumes or removes a
stack undoes the records of its root; `gc` also undoes the records on Nodes and Deployments.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, retried
from aiperf_svc.adapters.cluster.api.objects import ObjectRef, list_allowed
from aiperf_svc.domain.json_objects import Json

UNDO = "aiperf.dev/undo"
"""Annotation of a changed object, with the record, and label with the name of the stack.
Annotations of a root start with it."""
RETRY_S, POLL_S = 10.0, 0.5
"""Time for which a failed undo is retried, and interval between attempts."""


class Undo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to undo one event."""

    kind: Literal["uncordon", "scale", "admit"]
    name: str
    """Name of the Node, of the Deployment, or of the NetworkPolicy."""
    uid: str
    namespace: str = ""
    replicas: int = 0
    ingress: list[Json] = []

    @property
    def path(self) -> str:
        if self.kind == "uncordon":
            return f"/api/v1/nodes/{self.name}"
        if self.kind == "admit":
            group = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}"
            return f"{group}/networkpolicies/{self.name}"
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}"

    @property
    def text(self) -> str:
        """Describe the result of the undo."""
        if self.kind == "uncordon":
            return f"node {self.name} is uncordoned"
        if self.kind == "admit":
            return f"NetworkPolicy {self.namespace}/{self.name} admits connections again"
        return f"Deployment {self.namespace}/{self.name} is scaled to {self.replicas} again"

    @property
    def key(self) -> str:
        """Annotation of the root; unique, because several changes may have to be undone."""
        return f"{UNDO}-{self.uid}"

    @property
    def spec(self) -> Json:
        """The part of the spec that the undo restores."""
        if self.kind == "uncordon":
            return {"unschedulable": None}
        return {"ingress": self.ingress} if self.kind == "admit" else {"replicas": self.replicas}

    @property
    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()

    async def change(self, cluster: Cluster, stack: str, spec: Json) -> None:
        """Change the object's spec, and record the undo on the object in the same request. Raises
        Refused, Unreachable."""
        record = {"labels": {UNDO: stack}, "annotations": {UNDO: self.encoded}}
        await cluster.patch(self.path, {"metadata": record, "spec": spec})

    async def carry_out(self, cluster: Cluster) -> bool:
        """Undo the event, retrying if the API server fails for a while. Return False if the object
        is gone, replaced, or without a record: then it was not changed or is already undone, and
        its present state belongs to its owner. Raises Refused, Unreachable."""
        return await retried(partial(self._undo, cluster), within_s=RETRY_S, pause_s=POLL_S)

    async def _undo(self, cluster: Cluster) -> bool:
        nothing = {"labels": {UNDO: None}, "annotations": {UNDO: None}}
        try:
            metadata = (await cluster.get(self.path))["metadata"]
            if metadata["uid"] != self.uid or not (metadata.get("annotations") or {}).get(UNDO):
                return False
            await cluster.patch(self.path, {"metadata": nothing, "spec": self.spec})
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True


async def record_undo(cluster: Cluster, root: str, key: str, text: str | None) -> None:
    """Write the undo of an event to the root at this path, under `key`; None removes the record.
    Raises Refused, Unreachable."""
    changes: Json = {"metadata": {"annotations": {key: text}}}
    await cluster.patch(root, changes)


async def undo_recorded(
    cluster: Cluster, roots: Iterable[ObjectRef], say: Callable[[str], None]
) -> None:
    """Undo the events of an ended runner, by the records on the roots of a stack. Raises Refused,
    Unreachable."""
    records = [
        (root, key, text)
        for root in roots
        for key, text in root.annotations.items()
        if key.startswith(UNDO) and text
    ]
    for root, key, text in records:
        undo = _decoded(text)
        if undo is None:
            say(f"{root}: annotation {key} cannot be read: {text!r}")
            continue
        if await undo.carry_out(cluster):
            say(f"an event was not undone: {undo.text}")
        await record_undo(cluster, root.path, key, None)


async def changed_objects(cluster: Cluster, stack: str = "") -> list[tuple[str, Undo]]:
    """Return the records on Nodes and Deployments with the name of their stack, as far as the user
    may list these objects. With `stack`, return the records of this stack only. Raises Refused,
    Unreachable."""
    found, selector = [], f"{UNDO}={stack}" if stack else UNDO
    for path in ("/api/v1/nodes", "/apis/apps/v1/deployments"):
        for each in await list_allowed(cluster, path, labelSelector=selector):
            metadata = each["metadata"]
            undo = _decoded((metadata.get("annotations") or {}).get(UNDO, ""))
            if undo is not None:
                found.append((metadata["labels"][UNDO], undo))
    return found


def _decoded(text: str) -> Undo | None:
    try:
        return msgspec.json.decode(text, type=Undo)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
