"""Finds objects that a stack has left behind, and describes why they still exist. The source is the
API server, never a state file.

Every type that the server lists is searched for the stack's label, including cluster-scoped types.
The stack's own namespace is identified by its UID, so a new namespace of the same name is not
mistaken for it. In an existing namespace, the inventory from before the stack is compared with the
present one. A type that could not be listed counts as not checked, never as clean. If the stack
uses that type, the removal is unverified, unless the stack's own namespace is gone. Objects of
another user's stack of the same name, identified by the UIDs of its roots, are not reported as
left; nor are objects that merely have the label. PersistentVolumes do not have the stack's label
and are identified by their claims.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import (
    Catalog,
    ObjectRef,
    ResourceType,
    find_object,
    list_allowed,
    list_objects,
    list_pods,
    object_ref,
    read_catalog,
)
from aiperf_svc.adapters.cluster.teardown.inventory import (
    Inventory,
    StackObjects,
    compare,
    created_by_runs,
    deleted_with,
    inventory_of,
    is_claim_of,
    list_cluster_scoped,
    new_cluster_scoped,
    outliving_owners,
    roots_of,
)
from aiperf_svc.core.cluster.conditions import conditions_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.number_text import count, counted
from aiperf_svc.plan.identity import STACK_LABEL

POLL_S = 0.5
"""Seconds between checks. A check of about sixty lists costs a small API server 0.3 s."""
NAMESPACE = ResourceType("", "v1", "namespaces", "Namespace", False)
VOLUME = ResourceType("", "v1", "persistentvolumes", "PersistentVolume", False)
CONFIG_MAP = ResourceType("", "v1", "configmaps", "ConfigMap", True)
USUAL_TYPES = (
    "configmaps", "deployments.apps", "pods", "poddisruptionbudgets.policy",
    "rolebindings.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io", "secrets",
    "serviceaccounts", "services",
)  # fmt: skip
"""Types that every stack uses."""
NAMED = 3
"""Maximum number of objects and nodes named in a line."""


class LeakReport(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that still exist but should not."""

    left: tuple[ObjectRef, ...]
    not_checked: tuple[str, ...]
    """Types that could not be listed, with the reason."""
    unverified: tuple[str, ...] = ()
    """Types of these that may hold objects of the stack."""
    failed: tuple[str, ...] = ()
    """Types of `unverified` that the user may list: the API server failed."""
    outside: tuple[ObjectRef, ...] = ()
    """New cluster-scoped objects, created by the release's operators or by others."""
    missing: tuple[ObjectRef, ...] = ()
    """Objects that have disappeared from an existing namespace."""
    others: tuple[ObjectRef, ...] = ()
    """Roots of other stacks of the same name."""
    strays: tuple[ObjectRef, ...] = ()
    """Objects with the stack's label that neither it nor another stack of the same name created."""

    @property
    def is_clean(self) -> bool:
        """True if every type was listed and nothing was found."""
        return not self.left and not self.not_checked

    @property
    def text(self) -> str:
        """Describe the remaining objects and the unchecked types in one line."""
        if self.left:
            found = f"{counted(len(self.left), 'object', 'is')} left"
        elif self.unverified:
            missed = _kinds(self.unverified)
            return f"it is unknown whether anything is left: {missed} could not be listed"
        else:
            found = "nothing is left"
        others = len(self.not_checked)
        if not others:
            return found
        scope = "" if self.left else " of the types that the stack uses"
        kinds = f"{count(others, 'other type')} may not be listed (--json names them)"
        return f"{found}{scope}; {kinds}"


async def find_left(
    cluster: Cluster, wanted: StackObjects, *, timeout_s: float = 0.0
) -> LeakReport:
    """Return what is left. If nothing is found while the API server fails or does not respond,
    repeat the check until the timeout. Raises Refused, and Unreachable if the last request got no
    response."""
    end_mono_s = time.monotonic() + timeout_s
    while True:
        try:
            report = await _check_once(cluster, wanted)
        except (Refused, Unreachable) as error:
            if not error.is_temporary or time.monotonic() >= end_mono_s:
                raise
        else:
            if report.left or not report.failed or time.monotonic() >= end_mono_s:
                return report
        await asyncio.sleep(POLL_S)


async def _check_once(cluster: Cluster, wanted: StackObjects) -> LeakReport:
    stack, own, before = wanted.stack, wanted.own, wanted.before
    namespace = wanted.namespace or ""
    catalog = await read_catalog(cluster)
    labelled = await list_objects(
        cluster, catalog, or_namespace=namespace, selector=f"{STACK_LABEL}={stack}"
    )
    others = others_of(labelled.objects, stack, own)
    theirs = deleted_with(others, labelled.objects)
    ours = created_by_runs(labelled.objects, own=own, before=before)
    ours |= outliving_owners(labelled.objects, wanted)
    left = {each.uid: each for each in labelled.objects if each.uid in ours}
    strays = [each for each in labelled.objects if each.uid not in ours | theirs]
    not_checked, failed = dict.fromkeys(labelled.not_listed), {*labelled.failed}
    missing: tuple[ObjectRef, ...] = ()
    needed = {*USUAL_TYPES, *wanted.types, *(() if before is not None else (NAMESPACE.name,))}
    unread: tuple[str, ...] = ()
    if wanted.namespace_uid:
        inside = await _own_namespace(cluster, catalog, namespace, wanted.namespace_uid)
        left |= {each.uid: each for each in inside.left}
        not_checked |= dict.fromkeys(inside.not_checked)
        unread = inside.unverified
        # All other objects that the stack has created are deleted with its namespace.
        needed = {*wanted.types} - {each.name for each in catalog.types if each.is_namespaced}
    elif before is not None:
        listed = await list_objects(cluster, catalog, namespace=namespace)
        after = inventory_of(namespace, listed)
        differences = compare(before, after, stack=stack, own=own)
        theirs = deleted_with(others, (*labelled.objects, *after.objects))
        left |= {each.uid: each for each in differences.ours if each.uid not in {*left, *theirs}}
        missing = differences.missing
        not_checked |= dict.fromkeys(listed.not_listed)
        failed |= {*listed.failed}
    unverified = (*unread, *(each for each in not_checked if is_one_of(each, needed)))
    outside: tuple[ObjectRef, ...] = ()
    if wanted.outside is not None:
        # Objects named after a namespace that existed before may belong to others.
        own_space = namespace if wanted.namespace_uid else ""
        made, others_made = new_cluster_scoped(
            wanted.outside, await list_cluster_scoped(cluster), own_space
        )
        left |= {each.uid: each for each in made}
        outside = tuple(each for each in others_made if each.uid not in left)
    volumes = await _volumes(cluster, stack=stack, namespace=namespace, left=left)
    left |= {each.uid: each for each in volumes}
    return LeakReport(
        left=tuple(sorted(left.values(), key=_sort_key)),
        not_checked=tuple(not_checked),
        unverified=unverified,
        failed=tuple(each for each in unverified if each in failed),
        outside=outside,
        missing=missing,
        others=others,
        strays=tuple(sorted(strays, key=_sort_key)),
    )


async def find_roots(
    cluster: Cluster, *, stack: str, or_namespace: str | None
) -> tuple[ObjectRef, ...]:
    """Find the roots of all stacks of this name. Raises Unreachable."""
    return roots_of(await list_root_types(cluster, stack=stack, or_namespace=or_namespace), stack)


async def list_root_types(
    cluster: Cluster, *, stack: str, or_namespace: str | None
) -> tuple[ObjectRef, ...]:
    """List the namespaces and ConfigMaps with a stack's label, as far as the user may list them.

    Raises Unreachable if the API server does not respond or fails to list them: without its roots,
    a stack in use looks like an unused one.
    """
    listed = await list_objects(
        cluster,
        Catalog((NAMESPACE, CONFIG_MAP), ()),
        or_namespace=or_namespace,
        selector=f"{STACK_LABEL}={stack}",
    )
    if listed.failed:
        failed = ", ".join(listed.failed)
        raise Unreachable(f"stacks named {stack} cannot be searched for: {failed}")
    return listed.objects


def others_of(
    objects: tuple[ObjectRef, ...], stack: str, own: Collection[str] | None
) -> tuple[ObjectRef, ...]:
    """Return the roots of other stacks of the same name."""
    roots = () if own is None else roots_of(objects, stack)
    return tuple(each for each in roots if each.uid not in (own or ()))


async def uid_of_namespace(cluster: Cluster, namespace: str) -> str | None:
    """Return the UID of a namespace, or None if it does not exist. Raises Refused, Unreachable."""
    found = await find_object(cluster, f"{NAMESPACE.path()}/{namespace}")
    return None if found is None else str(found["metadata"]["uid"])


async def wait_until_gone(
    cluster: Cluster, wanted: StackObjects, *, timeout_s: float
) -> LeakReport:
    """Check until nothing is left or the timeout expires, and return the last report.

    Types that the user may not list do not prolong the wait. Raises as `find_left`.
    """
    end_mono_s = time.monotonic() + timeout_s
    while True:
        report = await find_left(cluster, wanted, timeout_s=end_mono_s - time.monotonic())
        if not report.left or time.monotonic() >= end_mono_s:
            return report
        await asyncio.sleep(POLL_S)


async def _volumes(
    cluster: Cluster, *, stack: str, namespace: str, left: Collection[str]
) -> list[ObjectRef]:
    """Return the existing PersistentVolumes of the stack's claims. If the user may not list them,
    the search by label has already reported them as not checked. Raises Refused, Unreachable."""
    return [
        object_ref(VOLUME, each["metadata"])
        for each in await list_allowed(cluster, VOLUME.path())
        if is_own_volume(each["spec"], stack=stack, namespace=namespace, left=left)
    ]


def is_own_volume(spec: Json, *, stack: str, namespace: str, left: Collection[str]) -> bool:
    """Return whether a PersistentVolume should be deleted with a claim of the stack. `left`
    contains the UIDs of existing claims."""
    claim = spec.get("claimRef") or {}
    is_ours = claim.get("uid") in left or (
        claim.get("namespace") == namespace and is_claim_of(claim.get("name", ""), stack)
    )
    return is_ours and spec.get("persistentVolumeReclaimPolicy") == "Delete"


async def _own_namespace(
    cluster: Cluster, catalog: Catalog, namespace: str, uid: str
) -> LeakReport:
    """Report the namespace, if it still has this UID, and everything in it."""
    try:
        found = await find_object(cluster, f"{NAMESPACE.path()}/{namespace}")
    except Refused as error:
        if error.is_temporary:
            raise
        unread = (f"namespace {namespace} ({error})",)
        return LeakReport(left=(), not_checked=unread, unverified=unread)
    if found is None or found["metadata"]["uid"] != uid:
        return LeakReport(left=(), not_checked=())
    listed = await list_objects(cluster, catalog, namespace=namespace)
    inside = inventory_of(namespace, listed)
    reference = msgspec.structs.replace(
        object_ref(NAMESPACE, found["metadata"]), detail=active_conditions(found)
    )
    return LeakReport(left=(reference, *inside.objects), not_checked=inside.not_listed)


def active_conditions(namespace: Json) -> str:
    """Describe the conditions of a namespace that is being deleted, in one line."""
    return "; ".join(
        f"{name}: {each.get('message') or each.get('reason', '')}"
        for name, each in conditions_of(namespace).items()
        if each["status"] == "True"
    )


def is_one_of(not_listed: str, types: Collection[str]) -> bool:
    """Return whether an entry of `Listed.not_listed` is about one of these types and the stack's
    namespace. A type may have been listed in that namespace only. A group with unknown types has a
    version: `apps/v1`."""
    name, _, rest = not_listed.partition(" ")
    group, is_group, _ = name.partition("/")
    if is_group:
        return any(each.partition(".")[2] == group for each in types)
    return name in types and not rest.startswith("outside ")


def refuse_unread(existing: Inventory, types: Collection[str]) -> None:
    """Raise EnvironmentProblem if the stack's types could not be listed before its creation."""
    if unread := [e for e in existing.not_listed if is_one_of(e, (*USUAL_TYPES, *types))]:
        where = f"namespace {existing.namespace}" if existing.namespace else "the cluster"
        raise EnvironmentProblem(
            f"{where}: it is unknown whether the stack would take over objects that are there and "
            f"delete them: {', '.join(unread)}"
        )


def _kinds(not_listed: Collection[str]) -> str:
    names = [each.partition(" (")[0] for each in not_listed]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _sort_key(found: ObjectRef) -> tuple[bool, str, str, str]:
    return bool(found.namespace), found.namespace, found.kind, found.name


async def describe_wait(cluster: Cluster, report: LeakReport, *, stack: str) -> str:
    """Describe in one line what is left and why; empty if nothing is left. Raises Unreachable."""
    if not report.left:
        return ""
    pods: list[Json] = []
    # Pods of Jobs and ranks also have the stack's label.
    for namespace in {each.namespace for each in report.left if each.kind == "Pod"}:
        pods += await list_pods(cluster, namespace, {STACK_LABEL: stack}) or ()
    nodes: dict[str, Json] = {}
    for name in sorted({each["spec"].get("nodeName", "") for each in pods} - {""})[:NAMED]:
        with contextlib.suppress(Refused):
            nodes[name] = await find_object(cluster, f"/api/v1/nodes/{name}") or {}
    return wait_reason(report.left, pods, nodes)


def wait_reason(left: Sequence[ObjectRef], pods: Iterable[Json], nodes: Mapping[str, Json]) -> str:
    """Describe what a removal waits for. `nodes` contains the readable nodes by name; an empty
    object means that the node is gone."""
    by_node = Counter(each["spec"].get("nodeName", "") for each in pods)
    parts = [
        f"{count(number, 'pod')} on node {name}{_node_problem(nodes.get(name))}" if name else
        f"{count(number, 'pod')} on no node"
        for name, number in sorted(by_node.items())[:NAMED]
    ]  # fmt: skip
    held = [each for each in left if each.finalizers and each.is_going]
    parts += [
        f"{each.kind} {_path(each)}, until the owner of the finalizer "
        f"{', '.join(each.finalizers)} removes it"
        for each in held[:NAMED]
    ]
    if not parts:
        # Namespaces are deleted last, and their conditions show what they wait for.
        first = next((each for each in left if each.kind != NAMESPACE.kind), left[0])
        parts = [str(first)]
    others = len(left) - sum(by_node.values()) - len(held[:NAMED]) - (not (by_node or held))
    more = f"; {count(others, 'other object')}" if others > 0 else ""
    return f"{'; '.join(parts)}{more}"


def _path(found: ObjectRef) -> str:
    return f"{found.namespace}/{found.name}" if found.namespace else found.name


def _node_problem(node: Json | None) -> str:
    """Return the reason why the kubelet of a node does not end its pods; empty if it works."""
    if node is None:
        return ""
    if not node:
        return ", which is gone"
    ready = conditions_of(node).get("Ready", {})
    if ready.get("status", "True") == "True":
        return ""
    since = ready.get("lastTransitionTime", "")
    why = one_line(ready.get("message") or ready.get("reason") or "")
    return f", which is not ready since {since}" + (f" ({why})" if why else "")
