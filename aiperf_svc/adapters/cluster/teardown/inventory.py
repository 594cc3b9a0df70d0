"""What is in a namespace, by name and UID: to be compared with what is in it later. And which of
it hangs on what."""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import ObjectRef, list_objects
from aiperf_svc.adapters.cluster.api.resource_types import read_catalog
from aiperf_svc.plan.identity import ANCHOR, RUN_LABEL, STACK_LABEL
from aiperf_svc.protocol.messages import Service

FURNITURE: Final = frozenset(
    {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
)  # fmt: skip
"""What Kubernetes puts into every namespace."""
FRUITFUL: Final = (*(each.value for each in Service), "control", "deadline", "results", "target")
"""Names, before the stack's, of our objects of which controllers make others."""

BARREN: Final = ("default", "keys", "services", "to-target")
"""The same of our objects of which nobody makes others."""
NAMED: Final = (
    "Deployment", "Ingress", "NetworkPolicy", "Role", "RoleBinding", "Secret", "Service",
    "ServiceAccount",
)  # fmt: skip
"""Kinds of objects that a stack makes by their names."""


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
    """New, and of the stack by what it hangs on, or by its name."""
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


def compare(
    before: Inventory, after: Inventory, *, stack: str, own: Collection[str] | None = None
) -> Differences:
    """What came and what went.

    Controllers make objects without our label for objects with it: an owner that is ours counts as
    well and, where no owner is there, a name that begins like one of ours. `own` as in `made_by`.
    """
    new = [each for each in after.objects if each.uid not in before.uids]
    seeds = (
        each.uid for each in new if is_called(each, stack) and not after.uids & set(each.owners)
    )
    labelled = [each for each in new if is_labelled(each, stack)]
    ours = _with_owned((*seeds, *made_by(labelled, own=own)), new)
    return Differences(
        ours=tuple(each for each in new if each.uid in ours),
        others=tuple(each for each in new if each.uid not in ours),
        missing=tuple(each for each in before.objects if each.uid not in after.uids),
    )


def made_by(
    objects: Iterable[ObjectRef],
    *,
    own: Collection[str] | None,
    before: Inventory | None = None,
) -> frozenset[str]:
    """UIDs of those objects with a stack's label that its runs have made.

    With `own`, UIDs of what the stack hangs on, these and what hangs on them. None: what also says
    which run it is of, which nobody writes by hand, and what hangs on that. What was there
    `before` is never among them: anybody can put a label on an object of his own.
    """
    known = before.uids if before else frozenset()
    new = [each for each in objects if each.uid not in known]
    roots = [each for each in new if (RUN_LABEL in each.labels if own is None else each.uid in own)]
    return hanging_on(roots, new)


def is_labelled(found: ObjectRef, stack: str) -> bool:
    """Whether an object says itself that it is the stack's."""
    return found.labels.get(STACK_LABEL) == stack


def is_called(found: ObjectRef, stack: str) -> bool:
    """Whether an object without a label is called like what controllers make of ours, to whose
    name they add."""
    return STACK_LABEL not in found.labels and any(
        f"{found.name}-".startswith(f"{what}-{stack}-") for what in FRUITFUL
    )


def is_name_of(found: ObjectRef, stack: str) -> bool:
    """Whether an object has the name and kind of one that a stack makes by server-side apply. The
    anchor is none of these, for making it fails where it is there; configs and disruption budgets
    have a hash in their names."""
    what = found.name.removesuffix(f"-{stack}")
    return found.kind in NAMED and what != found.name and what in (*FRUITFUL, *BARREN)


def roots_of(objects: Iterable[ObjectRef], stack: str) -> tuple[ObjectRef, ...]:
    """What everything else of a stack hangs on, of objects with its label: namespaces of its own
    and, in others, anchors. There are several when somebody uses the same name. Those that say
    nothing of a run are no stack's: anybody can put a label on his own namespace."""
    objects = tuple(each for each in objects if RUN_LABEL in each.labels)
    spaces = [each for each in objects if each.kind == "Namespace"]
    inside = {each.name for each in spaces}
    anchors = [
        each
        for each in objects
        if each.kind == "ConfigMap"
        and each.name == f"{ANCHOR}-{stack}"
        and each.namespace not in inside
    ]
    return (*spaces, *anchors)


def hanging_on(roots: Collection[ObjectRef], objects: Iterable[ObjectRef]) -> frozenset[str]:
    """UIDs of roots and of those objects that go with them: by namespace, or by owner."""
    objects = tuple(objects)
    spaces = {each.name for each in roots if each.kind == "Namespace"}
    inside = [each.uid for each in objects if each.namespace in spaces]
    return frozenset(_with_owned((*(each.uid for each in roots), *inside), objects))


def _with_owned(uids: Iterable[str], objects: Collection[ObjectRef]) -> set[str]:
    """UIDs with those of the objects that they own, over any number of steps."""
    found = set(uids)
    grown = -1
    while grown != len(found):
        grown = len(found)
        found |= {each.uid for each in objects if found & set(each.owners)}
    return found
