"""What tells the objects of a stack from others of the same names, since Pulumi reads and deletes
by name."""

from collections.abc import Collection, Iterable

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import ObjectRef, find_object, object_ref
from aiperf_svc.adapters.cluster.ownership import StackInUse, made_while_killed
from aiperf_svc.adapters.cluster.teardown.inventory import (
    is_labelled,
    names_of_others,
    namespaces_of,
    roots_of,
    take_outside,
)
from aiperf_svc.adapters.cluster.teardown.leaks import NAMESPACE
from aiperf_svc.adapters.pulumi import deployed
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.domain.json_objects import Json


async def own_in_state(
    cluster: Cluster, state: Json, there: Iterable[ObjectRef], *, stack: str
) -> set[str]:
    """Return the UIDs of the roots that a state has made, and of those among `there` that it was
    making when its process was killed. Raises Refused, Unreachable."""
    uids, making = deployed.roots_of(state, stack=stack)
    return {*uids, *(e.uid for e in await made_while_killed(cluster, stack, there, making))}


async def refuse_namesakes(
    cluster: Cluster, record: RunRecord, others: Iterable[ObjectRef]
) -> None:
    """Raise StackInUse if one of these roots of other stacks is where this one was, or a namespace
    of no stack. Pulumi reads and deletes objects by their names, which both have in common. Raises
    Refused, Unreachable."""
    if record.namespace in namespaces_of(others):
        raise StackInUse(
            f"stack {record.stack} is gone from namespace {record.namespace}, and another one of "
            "its name is there, whose objects Pulumi would delete with this state. The state is "
            f"left as it is; when the other stack is gone, aiperf-svc gc {record.stack} updates "
            "it, and --take-over removes the other stack too"
        )
    if record.namespace_uid is not None and record.namespace:
        await refuse_strangers(cluster, record.stack, record.namespace, record.own or ())


async def refuse_strangers(
    cluster: Cluster, stack: str, namespace: str, own: Collection[str]
) -> None:
    """Raise StackInUse if the namespace that a stack has made is gone, and somebody has made one of
    its name that is not a stack's. Raises Refused, Unreachable."""
    found = await find_object(cluster, f"{NAMESPACE.path()}/{namespace}")
    if found is None or found["metadata"]["uid"] in own:
        return
    there = object_ref(NAMESPACE, found["metadata"])
    if not (is_labelled(there, stack) and roots_of([there], stack)):
        raise StackInUse(
            f"namespace {namespace} of stack {stack} is gone, and another one of its name is "
            "there, which Pulumi would delete with this state. The state is left as it is; when "
            f"that namespace is gone too, aiperf-svc gc {stack} updates it"
        )


async def refuse_strangers_of(
    cluster: Cluster, stack: str, state: Json, own: Collection[str]
) -> None:
    """As `refuse_strangers`, for all that a state lists and that is in no namespace."""
    listed = [*deployed.resources(state, "kubernetes:")]
    for namespace in deployed.namespaces_in(listed):
        await refuse_strangers(cluster, stack, namespace, own)
    made = deployed.cluster_scoped_in(listed)
    if made and (taken := names_of_others(await take_outside(cluster), made, stack=stack)):
        raise StackInUse(
            f"stack {stack} is gone, and others have made {', '.join(taken)} again, which Pulumi "
            "would delete with this state. The state is left as it is; when they are gone too, "
            f"aiperf-svc gc {stack} updates it"
        )
