"""The content of a namespace by name and UID, for a comparison with a later one, and which object
depends on which."""

import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import (
    Catalog,
    Listed,
    ObjectRef,
    list_objects,
    read_catalog,
)
from aiperf_svc.config.deployment import RANK_POD
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.identity import ANCHOR, LEASE, RUN_LABEL, STACK_LABEL, TTL_ANNOTATION
from aiperf_svc.plan.index_pods import COLLECTOR, INDEX
from aiperf_svc.plan.release import READINESS
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.protocol.services import Service

AUTOMATIC: Final = frozenset(
    {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
)  # fmt: skip
"""Objects that Kubernetes puts into every namespace."""
OWNER_NAMES: Final = (
    *(each.value for each in Service), "control", "deadline", "results", "target", RANK_POD,
    COLLECTOR, READINESS,
)  # fmt: skip
"""Name prefixes, before the stack's name, of our objects for which controllers make further
objects."""

OTHER_NAMES: Final = (
    "default", "downloads", INDEX, "keys", LEASE, "monitoring", "pages", "ranks", "services",
    "to-metrics", "to-target", "upload", "volume", "workload",
)  # fmt: skip
"""Name prefixes of our objects for which no controller makes others."""
NAMED: Final = (
    "Deployment", "Ingress", "Lease", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor",
    "PrometheusRule", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet",
)  # fmt: skip
"""Kinds of objects that a stack makes under fixed names."""
_POOL: Final = re.compile(r"pool-[a-z0-9-]+")
"""Name, without the stack's, of the Service of a release's pool."""
_RANK_SET: Final = re.compile(rf"{RANK_POD}-\d+")
"""Name, without the stack's, of the StatefulSet of one rank."""
_JOB: Final = re.compile(rf"{INDEX}-\d+")
"""Name, without the stack's, of a Job."""


UNSTABLE: Final = frozenset({
    "APIService", "CSINode", "CertificateSigningRequest", "FlowSchema", "Namespace", "Node",
    "PriorityLevelConfiguration",
})  # fmt: skip
"""Cluster-scoped kinds whose objects controllers create and delete, or that are searched apart."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a namespace at one moment. Can be stored as JSON: msgspec.json."""

    namespace: str
    objects: tuple[ObjectRef, ...]
    not_listed: tuple[str, ...]

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(each.uid for each in self.objects)


class StackObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The properties by which the objects of one stack are found in its cluster."""

    stack: str
    namespace: str | None = None
    """Name of the namespace; None while it has none yet."""
    namespace_uid: str | None = None
    """UID of the stack's own namespace; None in an existing one."""
    before: Inventory | None = None
    """Inventory of an existing namespace, from before the stack."""
    outside: Inventory | None = None
    """Cluster-scoped objects from before a stack with a release, whose operators may make
    others."""
    types: tuple[str, ...] = ()
    """Types of the objects that it may create beside the usual ones: `jobs.batch`."""
    own: tuple[str, ...] | None = None
    """UIDs of the stack's roots, since another stack may have the same name. None: every object
    with a run's label belongs to it."""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between a namespace before a stack and after its removal."""

    ours: tuple[ObjectRef, ...]
    """New objects that belong to the stack by their owner or by their name."""
    missing: tuple[ObjectRef, ...]
    """Objects that are gone, or were made again under the same name. Those of other stacks, which
    come and go, are not among them."""


async def take_inventory(cluster: Cluster, namespace: str) -> Inventory:
    """List every object in a namespace, except Events and what Kubernetes itself puts there.

    A namespace that does not exist is empty. Raises Refused, Unreachable.
    """
    listed = await list_objects(cluster, await read_catalog(cluster), namespace=namespace)
    return inventory_of(namespace, listed)


def inventory_of(namespace: str, listed: Listed) -> Inventory:
    """Return what a list of all objects in a namespace has, except what Kubernetes puts there."""
    objects = tuple(each for each in listed.objects if (each.kind, each.name) not in AUTOMATIC)
    return Inventory(namespace=namespace, objects=objects, not_listed=listed.not_listed)


async def take_outside(cluster: Cluster) -> Inventory:
    """List the cluster-scoped objects that may be listed, except those of unstable kinds. Raises
    Unreachable."""
    known = await read_catalog(cluster)
    types = (t for t in known.types if not t.is_namespaced and t.kind not in UNSTABLE)
    listed = await list_objects(cluster, Catalog(tuple(types), ()))
    return Inventory(namespace="", objects=listed.objects, not_listed=listed.not_listed)


def made_outside(
    before: Inventory, after: Inventory, namespace: str
) -> tuple[tuple[ObjectRef, ...], tuple[ObjectRef, ...]]:
    """Return the new cluster-scoped objects whose names contain that of the stack's namespace, as
    those that operators make for one, and all other new ones."""
    new = [each for each in after.objects if each.uid not in before.uids]
    ours = tuple(each for each in new if namespace and namespace in each.name)
    return ours, tuple(each for each in new if each not in ours)


def compare(
    before: Inventory, after: Inventory, *, stack: str, own: Collection[str] | None = None
) -> Differences:
    """Compare two inventories of a namespace.

    Controllers make objects without our label for objects with it. So an object is also ours if its
    owner is ours or, if its owner does not exist, if its name begins like one of ours. `own` as in
    `made_by`.
    """
    new = [each for each in after.objects if each.uid not in before.uids]
    seeds = (
        each.uid for each in new if is_called(each, stack) and not after.uids & set(each.owners)
    )
    labelled = [each for each in new if is_labelled(each, stack)]
    ours = _with_owned((*seeds, *made_by(labelled, own=own)), new)
    others = [each for each in before.objects if each.labels.get(STACK_LABEL, stack) != stack]
    of_other_stacks = _with_owned((each.uid for each in others), before.objects)
    return Differences(
        ours=tuple(each for each in new if each.uid in ours),
        missing=tuple(
            each for each in before.objects if each.uid not in after.uids | of_other_stacks
        ),
    )


def made_by(
    objects: Iterable[ObjectRef],
    *,
    own: Collection[str] | None,
    before: Inventory | None = None,
) -> frozenset[str]:
    """Return the UIDs of those objects with a stack's label that its runs have created.

    `own` holds the UIDs of the stack's roots: these objects and their dependents are returned.
    None: the objects that also have a run's label, which no user writes by hand, and their
    dependents. Objects that existed `before` are never returned, since any user can put a label on
    an object of their own.
    """
    known = before.uids if before else frozenset()
    new = [each for each in objects if each.uid not in known]
    roots = [each for each in new if (RUN_LABEL in each.labels if own is None else each.uid in own)]
    return hanging_on(roots, new)


def outliving_owners(objects: Collection[ObjectRef], wanted: StackObjects) -> frozenset[str]:
    """Return the UIDs of objects that its runs have created in the stack's namespace, or for its
    roots, and whose owners are gone, from all objects with its label. Kueue holds pods that have
    never run, and what is in no namespace goes after the stack's."""
    if not wanted.own:
        return frozenset()
    known = wanted.before.uids if wanted.before else frozenset()
    uids = {each.uid for each in objects}
    return frozenset(
        each.uid
        for each in objects
        if (each.namespace == wanted.namespace or {*wanted.own} & {*each.owners})
        and RUN_LABEL in each.labels
        and each.owners
        and not uids & set(each.owners)
        and each.uid not in known
        and not known & set(each.owners)
    )


def is_labelled(found: ObjectRef, stack: str) -> bool:
    return found.labels.get(STACK_LABEL) == stack


def is_called(found: ObjectRef, stack: str) -> bool:
    """Return whether an object without a label has a name that controllers derive from one of
    ours."""
    return STACK_LABEL not in found.labels and (
        any(f"{found.name}-".startswith(f"{what}-{stack}-") for what in OWNER_NAMES)
        or re.match(rf"{_POOL.pattern}-{re.escape(stack)}-", f"{found.name}-") is not None
    )


def is_name_of(found: ObjectRef, stack: str) -> bool:
    """Return whether an object has the name and kind of one that a stack makes by server-side
    apply, or of a claim that its ranks would use. Anchors are not included, since making one fails
    if it exists; nor are configs and disruption budgets, which have a hash in their names."""
    if found.kind == "PersistentVolumeClaim" and is_claim_of(found.name, stack):
        return True
    what = found.name.removesuffix(f"-{stack}")
    if found.kind == "StatefulSet" and _RANK_SET.fullmatch(what):
        return True
    if found.kind == "Job" and _JOB.fullmatch(what):
        return True
    is_ours = what in (*OWNER_NAMES, *OTHER_NAMES) or _POOL.fullmatch(what) is not None
    return found.kind in NAMED and what != found.name and is_ours


def is_claim_of(name: str, stack: str) -> bool:
    """Return whether a PersistentVolumeClaim has the name of one of a stack's ranks."""
    rank = rf"volume-{RANK_POD}(-\d+)?-{re.escape(stack)}-\d+"
    return name == f"volume-{stack}" or re.fullmatch(rank, name) is not None


def roots_of(objects: Iterable[ObjectRef], stack: str) -> tuple[ObjectRef, ...]:
    """Return the roots of all stacks of this name, from objects with its label: their own
    namespaces and, in other namespaces, their anchors. There are several if two users have the same
    name. An object without a run's label is not a root, since any user can put a label on their own
    namespace."""
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
    """Return the UIDs of roots and of the objects that are deleted with them, by namespace or by
    owner."""
    objects = tuple(objects)
    spaces = {each.name for each in roots if each.kind == "Namespace"}
    inside = [each.uid for each in objects if each.namespace in spaces]
    return frozenset(_with_owned((*(each.uid for each in roots), *inside), objects))


def without_own(before: Inventory, own: Collection[str]) -> Inventory:
    """Return an inventory without the objects that depend on these roots of the stack: a runner
    made them and died, and this one has no record of its start."""
    made = made_by(before.objects, own=own)
    others = tuple(each for each in before.objects if each.uid not in made)
    return msgspec.structs.replace(before, objects=others)


def without_labelled(present: Inventory, stack: str) -> Inventory:
    """Return an inventory without the objects that have a stack's label."""
    others = tuple(each for each in present.objects if not is_labelled(each, stack))
    return msgspec.structs.replace(present, objects=others)


def namespaces_of(roots: Iterable[ObjectRef]) -> tuple[str, ...]:
    """Return the namespaces that these roots are, or are in."""
    return tuple(dict.fromkeys(each.namespace or each.name for each in roots))


def expiry(root: ObjectRef) -> str:
    """Return the time at which a stack removes itself, in words; empty if it does not."""
    ttl = root.annotations.get(TTL_ANNOTATION, "")
    if not ttl.isdecimal() or not root.created:
        return ""
    end = datetime.fromisoformat(root.created) + timedelta(seconds=float(ttl))
    return f"{end:%Y-%m-%d %H:%M} UTC"


def refuse_taken(present: Inventory, *, stack: str, plans: Iterable[StackPlan]) -> None:
    """Refuse names that are in use: server-side apply would take the object over, and `destroy`
    would delete it with the stack. Raises EnvironmentProblem."""
    released = {
        (each["kind"], each["metadata"]["name"])
        for plan in plans
        if plan.release is not None
        for each in plan.release.objects
    }
    taken = [
        each
        for each in present.objects
        if is_name_of(each, stack)
        or ((each.kind, each.name) in released and each.labels.get(STACK_LABEL) != stack)
    ]
    if taken:
        names = ", ".join(f"{each.kind} {each.name}" for each in taken)
        raise EnvironmentProblem(
            f"namespace {present.namespace} has {names} already, which stack {stack} would take "
            "over and delete; use another name for the stack, or another namespace"
        )


def names_of_others(outside: Inventory, names: Collection[str], *, stack: str) -> list[str]:
    """Return those of these names, `KIND/NAME`, that cluster-scoped objects have which are not the
    stack's."""
    found = {f"{e.kind}/{e.name}" for e in outside.objects if not is_labelled(e, stack)}
    return sorted(found & {*names})


def refuse_taken_outside(outside: Inventory, *, stack: str, plans: Iterable[StackPlan]) -> None:
    """Refuse names of a release's cluster-scoped objects that are in use, for the same reason. Helm
    itself refuses those of what it installs. Raises EnvironmentProblem."""
    made = {
        name
        for plan in plans
        if plan.release is not None
        for name in {*plan.release.cluster_scoped} - {*plan.release.installed}
    }
    if taken := names_of_others(outside, made, stack=stack):
        raise EnvironmentProblem(
            f"the cluster has {', '.join(taken)} already, which stack {stack} would take over and "
            "delete; give these objects of the release other names"
        )


def _with_owned(uids: Iterable[str], objects: Collection[ObjectRef]) -> set[str]:
    """Return UIDs together with those of the objects that they own, directly or indirectly."""
    found = set(uids)
    grown = -1
    while grown != len(found):
        grown = len(found)
        found |= {each.uid for each in objects if found & set(each.owners)}
    return found
