"""Starts the removal of a stack by deleting its roots, its Deployments and its StatefulSets.

Pulumi takes seconds to start, and Kubernetes waits five more before it empties a namespace. Pods
that are asked to end at once are gone by then.
"""

import asyncio
from collections.abc import Collection

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import Catalog, ObjectRef, ResourceType, list_objects
from aiperf_svc.adapters.cluster.teardown.inventory import hanging_on, roots_of
from aiperf_svc.adapters.cluster.teardown.leaks import CONFIG_MAP, NAMESPACE
from aiperf_svc.plan.identity import STACK_LABEL

DEPLOYMENT = ResourceType("apps", "v1", "deployments", "Deployment", True)
STATEFUL_SET = ResourceType("apps", "v1", "statefulsets", "StatefulSet", True)


async def remove_roots(
    cluster: Cluster, *, stack: str, namespace: str | None, own: Collection[str]
) -> tuple[ObjectRef, ...]:
    """Request the deletion of the stack's namespace or anchor, of its Deployments and of its
    StatefulSets.

    `own` holds the UIDs of the roots that the stack has made. Objects that depend on another root,
    or on none, are left alone even if they have the label. The roots are deleted first: once that
    is accepted, Kubernetes removes the rest even if the runner dies. Returns the objects whose
    deletion was requested. Raises Refused, Unreachable.
    """
    listed = await list_objects(
        cluster,
        Catalog((NAMESPACE, CONFIG_MAP, DEPLOYMENT, STATEFUL_SET), ()),
        selector=f"{STACK_LABEL}={stack}",
        or_namespace=namespace,
    )
    roots = [each for each in roots_of(listed.objects, stack) if each.uid in own]
    ours = hanging_on(roots, listed.objects)
    kinds = (DEPLOYMENT.kind, STATEFUL_SET.kind)
    holders = [each for each in listed.objects if each.kind in kinds and each.uid in ours]
    for group in (roots, holders):
        await asyncio.gather(*(cluster.delete(each.path, uid=each.uid) for each in group))
    return (*roots, *holders)
