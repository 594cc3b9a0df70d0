"""Distinguishes the objects of a stack from other objects of the same names. Pulumi reads and
deletes by name."""

from collections.abc import Collection, Iterable

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import ObjectRef, find_object, object_ref
from aiperf_svc.adapters.cluster.ownership import StackInUse, made_while_killed
from aiperf_svc.adapters.cluster.teardown.inventory import (
    is_labelled,
    list_cluster_scoped,
    names_taken,
    namespaces_of,
    roots_of,
)
from aiperf_svc.adapters.cluster.teardown.leaks import NAMESPACE
from aiperf_svc.adapters.pulumi import deployed
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.domain.json_objects import Json


async def own_in_state(
    cluster: Cluster, state: Json, existing: Iterable[ObjectRef], *, stack: str
) -> set[str]:
    """Return the UIDs of the roots that a state has created, and of the objects in `existing` that
    it was creating when its process was killed. Raises Refused, Unreachable."""
    uids, making = deployed.roots_of(state, stack=stack)
    return {*uids, *(e.uid for e in await made_while_killed(cluster, stack, existing, making))}


async def refuse_namesakes(
    cluster: Cluster, record: RunRecord, others: Iterable[ObjectRef]
) -> None:
    """Raise StackInUse if the namespace of this removed stack now contains another stack, or was
    replaced by a namespace of no stack. Pulumi would read and delete its objects, because it finds
    them by name. `others` are roots of other stacks. Raises Refused, Unreachable."""
    if record.namespace in namespaces_of(others):
        raise StackInUse(
            f"namespace {record.namespace} now contains another stack {record.stack}, which "
            "Pulumi would delete with this state. The state is unchanged; when that stack is "
            f"gone, aiperf-svc gc {record.stack} updates it, and --take-over removes the other "
            "stack too"
        )
    if record.namespace_uid is not None and record.namespace:
        await refuse_strangers(cluster, record.stack, record.namespace, record.own or ())


async def refuse_strangers(
    cluster: Cluster, stack: str, namespace: str, own: Collection[str]
) -> None:
    """Raise StackInUse if the stack's own namespace is gone and a namespace with the same name
    exists that belongs to no stack. Raises Refused, Unreachable."""
    found = await find_object(cluster, f"{NAMESPACE.path()}/{namespace}")
    if found is None or found["metadata"]["uid"] in own:
        return
    existing = object_ref(NAMESPACE, found["metadata"])
    if not (is_labelled(existing, stack) and roots_of([existing], stack)):
        raise StackInUse(
            f"namespace {namespace} of stack {stack} was replaced by another namespace of the same "
            "name, which Pulumi would delete with this state. The state is unchanged; when that "
            f"namespace is gone too, aiperf-svc gc {stack} updates it"
        )


async def refuse_strangers_of(
    cluster: Cluster, stack: str, state: Json, own: Collection[str]
) -> None:
    """Like `refuse_strangers`, for all cluster-scoped objects in a state."""
    listed = [*deployed.resources(state, "kubernetes:")]
    for namespace in deployed.namespaces_in(listed):
        await refuse_strangers(cluster, stack, namespace, own)
    made = deployed.cluster_scoped_in(listed)
    if made and (taken := names_taken(await list_cluster_scoped(cluster), made, stack=stack)):
        raise StackInUse(
            f"stack {stack} is gone, and {', '.join(taken)} now belong to others, but Pulumi "
            "would delete them with this state. The state is unchanged; when they are gone too, "
            f"aiperf-svc gc {stack} updates it"
        )
