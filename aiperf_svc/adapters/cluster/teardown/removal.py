"""Finds stacks by label, starts their removal, and removes them without Pulumi state."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

import msgspec

from aiperf_svc.adapters.cluster.api.connection import METADATA, Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import (
    Catalog,
    ObjectRef,
    ResourceType,
    find_object,
    list_objects,
    read_catalog,
)
from aiperf_svc.adapters.cluster.teardown.inventory import (
    StackObjects,
    created_by_runs,
    deleted_with,
    roots_of,
)
from aiperf_svc.adapters.cluster.teardown.leaks import CONFIG_MAP, NAMESPACE, POLL_S, is_one_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.identity import STACK_LABEL, TTL_ANNOTATION
from aiperf_svc.plan.queue import GROUP_LABEL, KUEUE, MANAGED_LABEL
from aiperf_svc.plan.release import BUILT_IN

OPERATORS_S = 30.0
"""Longest time for operators to remove the finalizers of custom resources before the rest of the
stack is deleted. Pulumi waits longer."""
DEPLOYMENT = ResourceType("apps", "v1", "deployments", "Deployment", True)
STATEFUL_SET = ResourceType("apps", "v1", "statefulsets", "StatefulSet", True)


class FoundStack(msgspec.Struct, frozen=True, kw_only=True):
    stack: str
    namespaces: tuple[str, ...]
    """Namespaces that hold objects of the stack."""
    expires: datetime | None
    """Time at which the stack deletes itself; None if it has no TTL."""
    is_overdue: bool
    """True if that time has passed."""
    overdue: tuple[str, ...] = ()
    """UIDs of the roots whose time has passed. The time of another stack's roots with the same name
    may not have passed."""
    objects: int


async def list_stacks(cluster: Cluster, *, namespace: str | None = None) -> tuple[FoundStack, ...]:
    """List every stack with an object anywhere, or in `namespace` if the user may not list all
    namespaces.

    Raises Refused, and Unreachable if the API server does not respond or fails to list the roots of
    stacks.
    """
    catalog = await read_catalog(cluster)
    listed = await list_objects(cluster, catalog, selector=STACK_LABEL, or_namespace=namespace)
    roots = (NAMESPACE.name, CONFIG_MAP.name)
    if failed := [each for each in listed.failed if is_one_of(each, roots)]:
        raise Unreachable(f"stacks cannot be searched for: {', '.join(failed)}")
    return group_stacks(listed.objects, now=await cluster.now())


def group_stacks(objects: Iterable[ObjectRef], *, now: datetime) -> tuple[FoundStack, ...]:
    """Group objects with the stack's label by stack, sorted by name."""
    by_stack: defaultdict[str, list[ObjectRef]] = defaultdict(list)
    for each in objects:
        by_stack[each.labels[STACK_LABEL]].append(each)
    return tuple(_found_stack(stack, found, now) for stack, found in sorted(by_stack.items()))


def _found_stack(stack: str, found: list[ObjectRef], now: datetime) -> FoundStack:
    own = {each.name for each in found if each.kind == "Namespace"}
    roots = roots_of(found, stack)
    deadlines = {
        each.uid: datetime.fromisoformat(each.created) + timedelta(seconds=float(ttl))
        # A preflight pod has a TTL too, which must not count as the TTL of a stack with roots.
        for each in roots or found
        if (ttl := each.annotations.get(TTL_ANNOTATION, "")).isdecimal()
    }
    expires = min(deadlines.values(), default=None)
    return FoundStack(
        stack=stack,
        namespaces=tuple(sorted(own | {each.namespace for each in found if each.namespace})),
        expires=expires,
        is_overdue=expires is not None and expires < now,
        overdue=tuple(uid for uid, end in deadlines.items() if end < now),
        objects=len(found),
    )


async def remove_by_label(cluster: Cluster, wanted: StackObjects) -> tuple[ObjectRef, ...]:
    """Request the deletion of the objects that a stack's runs have created, in one namespace if
    given: labelled objects that depend on its roots or, if the roots are unknown, that have a run's
    label. Objects that existed before, and objects that merely have the label, stay.

    Returns the objects whose deletion was requested; they disappear a little later
    (`leaks.wait_until_gone`). Finalizers are left to their owners. After deleting all other
    objects, raises EnvironmentProblem that names the objects that could not be deleted; Refused,
    Unreachable.
    """
    stack, namespace = wanted.stack, wanted.namespace
    catalog = await read_catalog(cluster)
    listed = await list_objects(
        cluster, catalog, selector=f"{STACK_LABEL}={stack}", or_namespace=namespace
    )
    made = created_by_runs(listed.objects, own=wanted.own, before=wanted.before)
    ours = [each for each in listed.objects if each.uid in made]
    chosen = to_delete(ours, namespace=namespace)
    refusals = await asyncio.gather(*(_delete(cluster, each) for each in chosen))
    refused = [each for each in refusals if each]
    if refused:
        raise EnvironmentProblem(
            f"{len(refused)} of {len(chosen)} objects of stack {stack} cannot be deleted: "
            f"{'; '.join(refused)}"
        )
    return chosen


def to_delete(objects: Iterable[ObjectRef], *, namespace: str | None) -> tuple[ObjectRef, ...]:
    """Return the minimal set of objects whose deletion removes all `objects`. An object whose owner
    or namespace is in the set is deleted with it."""
    candidates = [
        each
        for each in objects
        if namespace is None
        or each.namespace == namespace
        or (each.kind == "Namespace" and each.name == namespace)
    ]
    going = {each.name for each in candidates if each.kind == "Namespace"}
    uids = {each.uid for each in candidates}
    return tuple(
        each
        for each in candidates
        if not each.is_going and each.namespace not in going and not uids & set(each.owners)
    )


async def _delete(cluster: Cluster, found: ObjectRef) -> str:
    try:
        await cluster.delete(found.path, uid=found.uid)
    except Refused as error:
        return f"{found}: {error}"
    return ""


async def remove_custom(
    cluster: Cluster, wanted: StackObjects, roots: Collection[ObjectRef]
) -> tuple[ObjectRef, ...]:
    """Delete the custom resources of a stack, and wait for a limited time until their operators
    have removed the finalizers. Returns those that are left. Raises Refused, Unreachable."""
    if not any(each.partition(".")[2] not in BUILT_IN for each in wanted.types):
        return ()
    known = await read_catalog(cluster)
    types = (t for t in known.types if t.name in wanted.types and t.group not in BUILT_IN)
    listed = await list_objects(
        cluster,
        Catalog(tuple(types), ()),
        selector=f"{STACK_LABEL}={wanted.stack}",
        or_namespace=wanted.namespace,
    )
    made = deleted_with(roots, listed.objects)
    left = [each for each in listed.objects if each.uid in made]
    end_mono_s = time.monotonic() + OPERATORS_S
    for each in left:
        if not each.is_going:
            await cluster.delete(each.path, uid=each.uid)
    while left and time.monotonic() < end_mono_s:
        await asyncio.sleep(POLL_S)
        left = [each for each in left if await _is_there(cluster, each)]
    return tuple(left)


async def _is_there(cluster: Cluster, found: ObjectRef) -> bool:
    now = await find_object(cluster, found.path, accept=METADATA)
    return now is not None and bool(now["metadata"]["uid"] == found.uid)


async def release_from_queue(cluster: Cluster, left: Iterable[ObjectRef]) -> None:
    """Delete the Workloads of groups of terminating pods that still have Kueue's finalizer; Kueue
    then removes the finalizer. Otherwise it waits for replacements of pods that never ran. Raises
    Refused, Unreachable."""
    groups = {
        (each.namespace, each.labels[GROUP_LABEL])
        for each in left
        if each.is_going and MANAGED_LABEL in each.finalizers and GROUP_LABEL in each.labels
    }
    for namespace, group in sorted(groups):
        await cluster.delete(f"{KUEUE}/namespaces/{namespace}/workloads/{group}")


async def remove_roots(cluster: Cluster, wanted: StackObjects) -> tuple[ObjectRef, ...]:
    """Start the removal of a stack: request the deletion of its namespace or anchor, of its
    Deployments and of its StatefulSets.

    Pulumi takes seconds to start, and Kubernetes waits five more before it empties a namespace. By
    then, the pods whose deletion is requested here are gone.

    Custom resources are deleted and awaited first (`remove_custom`).

    Objects that depend on the roots of another stack, or on no root, stay even if they have the
    label. Nothing is deleted if the stack's roots are unknown. The roots are deleted first: once
    that is accepted, Kubernetes removes the rest even if the runner dies. Returns the objects whose
    deletion was requested. Raises Refused, Unreachable.
    """
    listed = await list_objects(
        cluster,
        Catalog((NAMESPACE, CONFIG_MAP, DEPLOYMENT, STATEFUL_SET), ()),
        selector=f"{STACK_LABEL}={wanted.stack}",
        or_namespace=wanted.namespace,
    )
    own = wanted.own or ()
    roots = [each for each in roots_of(listed.objects, wanted.stack) if each.uid in own]
    await remove_custom(cluster, wanted, roots)
    ours = deleted_with(roots, listed.objects)
    kinds = (DEPLOYMENT.kind, STATEFUL_SET.kind)
    holders = [each for each in listed.objects if each.kind in kinds and each.uid in ours]
    for group in (roots, holders):
        await asyncio.gather(*(cluster.delete(each.path, uid=each.uid) for each in group))
    return (*roots, *holders)
