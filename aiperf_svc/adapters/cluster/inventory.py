"""What is in a namespace, by name and UID: to be compared with what is in it later."""

from typing import Final

import msgspec

from aiperf_svc.adapters.cluster.connection import Cluster
from aiperf_svc.adapters.cluster.objects import ObjectRef, list_objects
from aiperf_svc.adapters.cluster.resource_types import read_catalog
from aiperf_svc.plan.identity import STACK_LABEL

FURNITURE: Final = frozenset(
    {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
)  # fmt: skip
"""What Kubernetes puts into every namespace."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a namespace at one moment. Survives as JSON: msgspec.json."""

    namespace: str
    objects: tuple[ObjectRef, ...]
    not_listed: tuple[str, ...]

    @property
    def uids(self) -> frozenset[str]:
        """Of all objects."""
        return frozenset(each.uid for each in self.objects)


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """What is not as it was before a stack came and went."""

    ours: tuple[ObjectRef, ...]
    """New, and of the stack by label, name or owner."""
    others: tuple[ObjectRef, ...]
    """New, and nothing says that they are the stack's."""
    missing: tuple[ObjectRef, ...]
    """There before and not now, or made again under the same name."""


async def take_inventory(cluster: Cluster, namespace: str) -> Inventory:
    """Every object in a namespace, Events and what Kubernetes itself puts there left out.

    A namespace that does not exist is empty. Raises Refused, Unreachable.
    """
    listed = await list_objects(cluster, await read_catalog(cluster), namespace=namespace)
    objects = tuple(each for each in listed.objects if (each.kind, each.name) not in FURNITURE)
    return Inventory(namespace=namespace, objects=objects, not_listed=listed.not_listed)


def compare(before: Inventory, after: Inventory, *, stack: str) -> Differences:
    """What came and what went.

    Controllers make objects without our label for objects with it, so the stack's name in a name
    and an owner that is ours count as well.
    """
    new = [each for each in after.objects if each.uid not in before.uids]
    ours = {each.uid for each in new if is_of_stack(each, stack)}
    grown = -1
    while grown != len(ours):
        grown = len(ours)
        ours |= {each.uid for each in new if ours & set(each.owners)}
    return Differences(
        ours=tuple(each for each in new if each.uid in ours),
        others=tuple(each for each in new if each.uid not in ours),
        missing=tuple(each for each in before.objects if each.uid not in after.uids),
    )


def is_of_stack(found: ObjectRef, stack: str) -> bool:
    """Whether an object says itself that it is the stack's: a label counts before a name, for the
    name of one stack may begin with another's."""
    label = found.labels.get(STACK_LABEL)
    return label == stack if label is not None else f"-{stack}-" in f"-{found.name}-"
