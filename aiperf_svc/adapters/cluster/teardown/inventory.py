"""The objects of a namespace by name and UID for later comparison, and their dependencies."""

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
"""Objects that Kubernetes creates in every namespace."""
OWNER_NAMES: Final = (
    *(each.value for each in Service), "control", "deadline", "results", "target", RANK_POD,
    COLLECTOR, READINESS,
)  # fmt: skip
"""Name prefixes, before the stack's name, of the stack's objects for which controllers create more
objects."""

OTHER_NAMES: Final = (
    "default", "downloads", INDEX, "keys", LEASE, "monitoring", "pages", "ranks", "services",
    "to-metrics", "to-target", "upload", "volume", "workload",
)  # fmt: skip
"""Name prefixes of the stack's objects for which no controller creates others."""
NAMED: Final = (
    "Deployment", "Ingress", "Lease", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor",
    "PrometheusRule", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet",
)  # fmt: skip
"""Kinds of objects that a stack creates under fixed names."""
_POOL: Final = re.compile(r"pool-[a-z0-9-]+")
"""Name, without the stack's name, of the Service of a release's pool."""
_RANK_SET: Final = re.compile(rf"{RANK_POD}-\d+")
"""Name, without the stack's name, of the StatefulSet of a rank."""
_JOB: Final = re.compile(rf"{INDEX}-\d+")
"""Name, without the stack's name, of a Job."""


UNSTABLE: Final = frozenset({
    "APIService", "CSINode", "CertificateSigningRequest", "FlowSchema", "Namespace", "Node",
    "PriorityLevelConfiguration",
})  # fmt: skip
"""Cluster-scoped kinds that controllers create and delete, or that have a separate search."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All objects of a namespace at one moment. Serialised with msgspec.json."""

    namespace: str
    objects: tuple[ObjectRef, ...]
    not_listed: tuple[str, ...]

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(each.uid for each in self.objects)


class StackObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that identify the objects of a stack in its cluster."""

    stack: str
    namespace: str | None = None
    """Name of the namespace; None until it has one."""
    namespace_uid: str | None = None
    """UID of the stack's own namespace; None in an existing namespace."""
    before: Inventory | None = None
    """Inventory of an existing namespace, taken before the stack."""
    outside: Inventory | None = None
    """Cluster-scoped objects before a stack with a release, whose operators may create more."""
    types: tuple[str, ...] = ()
    """Types of the objects that it may create in addition to the usual ones: `jobs.batch`."""
    own: tuple[str, ...] | None = None
    """UIDs of the stack's roots, because another stack may have the same name. None: every object
    with a run's label belongs to the stack."""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between a namespace before a stack and after its removal."""

    ours: tuple[ObjectRef, ...]
    """New objects that belong to the stack, by owner or by name."""
    missing: tuple[ObjectRef, ...]
    """Objects that are gone or were recreated, except objects of other stacks."""


async def take_inventory(cluster: Cluster, namespace: str) -> Inventory:
    """List every object in a namespace, except Events and the objects that Kubernetes creates.

    A namespace that does not exist is empty. Raises Refused, Unreachable.
    """
    listed = await list_objects(cluster, await read_catalog(cluster), namespace=namespace)
    return inventory_of(namespace, listed)


def inventory_of(namespace: str, listed: Listed) -> Inventory:
    """Return the listed objects of a namespace, except those that Kubernetes creates."""
    objects = tuple(each for each in listed.objects if (each.kind, each.name) not in AUTOMATIC)
    return Inventory(namespace=namespace, objects=objects, not_listed=listed.not_listed)


async def list_cluster_scoped(cluster: Cluster) -> Inventory:
    """List the cluster-scoped objects that the user may list, except those of unstable kinds.
    Raises Unreachable."""
    known = await read_catalog(cluster)
    types = (t for t in known.types if not t.is_namespaced and t.kind not in UNSTABLE)
    listed = await list_objects(cluster, Catalog(tuple(types), ()))
    return Inventory(namespace="", objects=listed.objects, not_listed=listed.not_listed)


def new_cluster_scoped(
    before: Inventory, after: Inventory, namespace: str
) -> tuple[tuple[ObjectRef, ...], tuple[ObjectRef, ...]]:
    """Return two groups of new cluster-scoped objects: those whose names contain the name of the
    stack's namespace, as operators name them, and all others."""
    new = [each for each in after.objects if each.uid not in before.uids]
    ours = tuple(each for each in new if namespace and namespace in each.name)
    return ours, tuple(each for each in new if each not in ours)


def compare(
    before: Inventory, after: Inventory, *, stack: str, own: Collection[str] | None = None
) -> Differences:
    """Compare two inventories of a namespace.

    Controllers create objects without the stack's label for objects with it. So an object also
    belongs to the stack if its owner does or, if its owner does not exist, if its name starts like
    one of the stack's objects. `own` as in `created_by_runs`.
    """
    new = [each for each in after.objects if each.uid not in before.uids]
    seeds = (
        each.uid
        for each in new
        if has_derived_name(each, stack) and not after.uids & set(each.owners)
    )
    labelled = [each for each in new if is_labelled(each, stack)]
    ours = _with_owned((*seeds, *created_by_runs(labelled, own=own)), new)
    others = [each for each in before.objects if each.labels.get(STACK_LABEL, stack) != stack]
    of_other_stacks = _with_owned((each.uid for each in others), before.objects)
    return Differences(
        ours=tuple(each for each in new if each.uid in ours),
        missing=tuple(
            each for each in before.objects if each.uid not in after.uids | of_other_stacks
        ),
    )


def created_by_runs(
    objects: Iterable[ObjectRef],
    *,
    own: Collection[str] | None,
    before: Inventory | None = None,
) -> frozenset[str]:
    """Return the UIDs of those objects with a stack's label that its runs have created.

    `own` contains the UIDs of the stack's roots: these objects and their dependents are returned.
    None: the objects that also have a run's label, which users do not set by hand, and their
    dependents. Objects in `before` are never returned, because any user can label their own
    objects.
    """
    known = before.uids if before else frozenset()
    new = [each for each in objects if each.uid not in known]
    roots = [each for each in new if (RUN_LABEL in each.labels if own is None else each.uid in own)]
    return deleted_with(roots, new)


def outliving_owners(objects: Collection[ObjectRef], wanted: StackObjects) -> frozenset[str]:
    """Return the UIDs of objects with its label that its runs have created, in the stack's
    namespace or for its roots, and that remain although their owners are gone. Kueue retains pods
    that never ran, and cluster-scoped objects are deleted after the namespace."""
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


def has_derived_name(found: ObjectRef, stack: str) -> bool:
    """Return whether an unlabelled object has a name derived from one of the stack's names."""
    return STACK_LABEL not in found.labels and (
        any(f"{found.name}-".startswith(f"{prefix}-{stack}-") for prefix in OWNER_NAMES)
        or re.match(rf"{_POOL.pattern}-{re.escape(stack)}-", f"{found.name}-") is not None
    )


def has_name_of_stack(found: ObjectRef, stack: str) -> bool:
    """Return whether an object has the name and kind of an object that a stack creates with
    server-side apply, or of a claim of its ranks. Anchors are excluded, because creating one fails
    if it exists; so are configs and disruption budgets, which have a hash in their names."""
    if found.kind == "PersistentVolumeClaim" and is_claim_of(found.name, stack):
        return True
    prefix = found.name.removesuffix(f"-{stack}")
    if found.kind == "StatefulSet" and _RANK_SET.fullmatch(prefix):
        return True
    if found.kind == "Job" and _JOB.fullmatch(prefix):
        return True
    is_ours = prefix in (*OWNER_NAMES, *OTHER_NAMES) or _POOL.fullmatch(prefix) is not None
    return found.kind in NAMED and prefix != found.name and is_ours


def is_claim_of(name: str, stack: str) -> bool:
    """Return whether a PersistentVolumeClaim has the name of a claim of the stack's ranks."""
    rank = rf"volume-{RANK_POD}(-\d+)?-{re.escape(stack)}-\d+"
    return name == f"volume-{stack}" or re.fullmatch(rank, name) is not None


def roots_of(objects: Iterable[ObjectRef], stack: str) -> tuple[ObjectRef, ...]:
    """Return the roots of all stacks of this name, from objects with its label: their own
    namespaces and, in other namespaces, their anchors. There are several if two users chose the
    same name. An object without a run's label is not a root, because any user can label their own
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


def deleted_with(roots: Collection[ObjectRef], objects: Iterable[ObjectRef]) -> frozenset[str]:
    """Return the UIDs of roots and of the objects that are deleted with them."""
    objects = tuple(objects)
    spaces = {each.name for each in roots if each.kind == "Namespace"}
    inside = [each.uid for each in objects if each.namespace in spaces]
    return frozenset(_with_owned((*(each.uid for each in roots), *inside), objects))


def without_dependents(before: Inventory, own: Collection[str]) -> Inventory:
    """Return an inventory without the objects that depend on these roots: a runner that died
    created them, and this runner has no record of that run's start."""
    made = created_by_runs(before.objects, own=own)
    others = tuple(each for each in before.objects if each.uid not in made)
    return msgspec.structs.replace(before, objects=others)


def without_labelled(present: Inventory, stack: str) -> Inventory:
    """Return an inventory without the objects that have a stack's label."""
    others = tuple(each for each in present.objects if not is_labelled(each, stack))
    return msgspec.structs.replace(present, objects=others)


def namespaces_of(roots: Iterable[ObjectRef]) -> tuple[str, ...]:
    """Return the namespaces among these roots and the namespaces of the others."""
    return tuple(dict.fromkeys(each.namespace or each.name for each in roots))


def expiry(root: ObjectRef) -> str:
    """Describe the time at which a stack deletes itself; empty if it does not."""
    ttl = root.annotations.get(TTL_ANNOTATION, "")
    if not ttl.isdecimal() or not root.created:
        return ""
    end = datetime.fromisoformat(root.created) + timedelta(seconds=float(ttl))
    return f"{end:%Y-%m-%d %H:%M} UTC"


def refuse_taken(present: Inventory, *, stack: str, plans: Iterable[StackPlan]) -> None:
    """Refuse names in use: server-side apply would take the objects over, and `destroy` would
    delete them with the stack. Raises EnvironmentProblem."""
    released = {
        (each["kind"], each["metadata"]["name"])
        for plan in plans
        if plan.release is not None
        for each in plan.release.objects
    }
    taken = [
        each
        for each in present.objects
        if has_name_of_stack(each, stack)
        or ((each.kind, each.name) in released and each.labels.get(STACK_LABEL) != stack)
    ]
    if taken:
        names = ", ".join(f"{each.kind} {each.name}" for each in taken)
        raise EnvironmentProblem(
            f"namespace {present.namespace} has {names} already, which stack {stack} would take "
            "over and delete; use another name for the stack, or another namespace"
        )


def names_taken(outside: Inventory, names: Collection[str], *, stack: str) -> list[str]:
    """Return the `names`, as `KIND/NAME`, that cluster-scoped objects outside the stack have."""
    found = {f"{e.kind}/{e.name}" for e in outside.objects if not is_labelled(e, stack)}
    return sorted(found & {*names})


def refuse_taken_outside(outside: Inventory, *, stack: str, plans: Iterable[StackPlan]) -> None:
    """Refuse names in use for a release's cluster-scoped objects, for the same reason. Helm itself
    refuses those of the objects that it installs. Raises EnvironmentProblem."""
    made = {
        name
        for plan in plans
        if plan.release is not None
        for name in {*plan.release.cluster_scoped} - {*plan.release.installed}
    }
    if taken := names_taken(outside, made, stack=stack):
        raise EnvironmentProblem(
            f"the cluster has {', '.join(taken)} already, which stack {stack} would take over and "
            "delete; give these objects of the release other names"
        )


def _with_owned(uids: Iterable[str], objects: Collection[ObjectRef]) -> set[str]:
    """Return UIDs together with the UIDs of the objects that they own, directly or indirectly."""
    found = set(uids)
    grown = -1
    while grown != len(found):
        grown = len(found)
        found |= {each.uid for each in objects if found & set(each.owners)}
    return found
