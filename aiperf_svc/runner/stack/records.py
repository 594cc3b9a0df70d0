"""What belongs to a stack: the record that is made before `up`, and the roots by which a stack is
told from others of the same name."""

import contextlib
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import Catalog, ObjectRef, list_objects
from aiperf_svc.adapters.cluster.ownership import find_lease, of_another_state, owner_name
from aiperf_svc.adapters.cluster.preflight.rights import needed_rights
from aiperf_svc.adapters.cluster.teardown.inventory import (
    Inventory,
    StackObjects,
    is_name_of,
    made_by,
    take_inventory,
    take_outside,
)
from aiperf_svc.adapters.cluster.teardown.leaks import (
    CONFIG_MAP,
    NAMESPACE,
    find_roots,
    wait_until_gone,
)
from aiperf_svc.adapters.cluster.teardown.removal import remove_by_label
from aiperf_svc.adapters.pulumi import deployed
from aiperf_svc.adapters.pulumi.cli import PulumiCli, PulumiFailed
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import STACK_LABEL, TTL_ANNOTATION
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.stack.request import StackRequest

GONE_S = 60.0
"""Longest time for the end of what a killed `up` was creating: an empty namespace or an anchor."""


async def first_record(
    request: StackRequest, cluster: Cluster, home: StateHome, cli: PulumiCli
) -> RunRecord:
    """Record what is needed to remove the stack, before any object of it is created.

    Raises EnvironmentProblem when a stack of this name is up that belongs to another state.
    """
    wanted = request.plan.config.deployment.namespace
    known, before = home.load(request.stack), None
    if wanted.mode == "existing" and wanted.name:
        if known and known.before and known.before.namespace == wanted.name:
            # Objects of an earlier run may still exist. They are not part of the original content.
            before = known.before
        else:
            before = await take_inventory(cluster, wanted.name)
    outside = known.outside if known else None
    if not any(plan.release is not None for plan in request.plans):
        outside = None
    elif outside is None:
        outside = await take_outside(cluster)
    record = RunRecord(
        stack=request.stack,
        cluster=cluster.identity,
        kubeconfig=request.used_kubeconfig or _single(request.environ.get("KUBECONFIG", "")),
        context=cluster.context,
        backend=cli.backend,
        is_ephemeral=request.is_ephemeral,
        namespace=wanted.name,
        before=before,
        outside=outside,
        types=made_types(request),
        own=(known.own or ()) if known else (),
    )
    there = await find_roots(cluster, stack=request.stack, or_namespace=wanted.name)
    if there:
        record = await find_own(record, cluster, cli)
        await refuse_others(there, record, cluster)
    if before is not None:
        before = without_own(before, record.own or ())
        refuse_taken(before, stack=request.stack, plans=request.plans)
        record = msgspec.structs.replace(record, before=before)
    return record


def without_own(before: Inventory, own: Collection[str]) -> Inventory:
    """Return an inventory without the objects that depend on these roots of the stack: a runner
    made them and died, and this one has no record of its start."""
    made = made_by(before.objects, own=own)
    others = tuple(each for each in before.objects if each.uid not in made)
    return msgspec.structs.replace(before, objects=others)


def made_types(request: StackRequest) -> tuple[str, ...]:
    """Return the types of the objects that the stack makes in its namespace: `deployments.apps`."""
    made = {
        f"{right.resource}.{right.group}" if right.group else right.resource
        for plan in request.plans
        for right in needed_rights(plan)
        if right.verb == "create" and right.resource != "namespaces"
    }
    return tuple(sorted(made))


async def refuse_others(there: Iterable[ObjectRef], record: RunRecord, cluster: Cluster) -> None:
    """Check that all objects found belong to the record. Raises EnvironmentProblem that names the
    owners of the others."""
    others = [each for each in there if each.uid not in (record.own or ())]
    if not others:
        return
    places = namespaces_of(others)
    owners = []
    for namespace in places:
        with contextlib.suppress(Refused):
            lease = await find_lease(cluster, record.stack, namespace)
            owners += [lease.owner] if lease else []
    raise EnvironmentProblem(of_another_state(record.stack, places, owners))


def namespaces_of(roots: Iterable[ObjectRef]) -> tuple[str, ...]:
    """Return the namespaces that these roots are, or are in."""
    return tuple(dict.fromkeys(each.namespace or each.name for each in roots))


def refuse_taken(before: Inventory, *, stack: str, plans: Iterable[StackPlan]) -> None:
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
        for each in before.objects
        if is_name_of(each, stack)
        or ((each.kind, each.name) in released and each.labels.get(STACK_LABEL) != stack)
    ]
    if taken:
        names = ", ".join(f"{each.kind} {each.name}" for each in taken)
        raise EnvironmentProblem(
            f"namespace {before.namespace} has {names} already, which stack {stack} would take "
            "over and delete; use another name for the stack, or another namespace"
        )


async def remove_unfinished(record: RunRecord, cluster: Cluster, cli: PulumiCli, say: Say) -> None:
    """Remove the roots that a killed `up` was creating when it was killed, which the next one would
    refuse because they exist. Raises EnvironmentProblem if they remain."""
    uids, making = deployed.roots_of(await cli.export(), stack=record.stack)
    listed = await list_objects(
        cluster,
        Catalog((NAMESPACE, CONFIG_MAP), ()),
        or_namespace=record.namespace,
        selector=f"{STACK_LABEL}={record.stack}",
    )
    found = await _made_while_killed(cluster, record.stack, listed.objects, making)
    left = [each for each in found if each.uid not in uids]
    if not left:
        return
    say(f"removing what a killed `pulumi up` was creating: {', '.join(map(str, left))}")
    # Such a root has a namespace of its own, whose name is not that of the record.
    shared = record.namespace if record.before is not None else None
    wanted = StackObjects(
        stack=record.stack, namespace=shared, own=tuple(each.uid for each in left)
    )
    await remove_by_label(cluster, wanted)
    report = await wait_until_gone(cluster, wanted, timeout_s=GONE_S)
    if report.left:
        raise EnvironmentProblem(f"{report.in_words} of an `up` that was killed: {report.left[0]}")
    ended = await cli.refresh(clear_pending=True)
    if ended.code:
        raise PulumiFailed("refresh", ended)


async def _made_while_killed(
    cluster: Cluster,
    stack: str,
    objects: Iterable[ObjectRef],
    making: Collection[tuple[str, str]],
) -> list[ObjectRef]:
    """Return those of `objects` that a killed `up` was creating. An object of this name that has a
    Lease of another owner is not one of them: the Lease is created after it, by a process that was
    not killed."""
    found = []
    for each in objects:
        if (each.namespace, each.name) in making:
            with contextlib.suppress(Refused):
                lease = await find_lease(cluster, stack, each.namespace or each.name)
                if lease is not None and lease.owner != owner_name():
                    continue
            found.append(each)
    return found


async def own_in_state(
    cluster: Cluster, state: Json, there: Iterable[ObjectRef], *, stack: str
) -> set[str]:
    """Return the UIDs of the roots that a state has made, and of those among `there` that it was
    making when its process was killed. Raises Unreachable."""
    uids, making = deployed.roots_of(state, stack=stack)
    return {*uids, *(e.uid for e in await _made_while_killed(cluster, stack, there, making))}


async def find_own(record: RunRecord, cluster: Cluster, cli: PulumiCli | None) -> RunRecord:
    """Return the record with the UIDs of the stack's roots and of its own namespace.

    Pulumi's state lists what belongs to the stack, including objects that were being made when it
    was interrupted. Another user's stack may have the same name and label, so without a state the
    record's UIDs are used or, if it has none, everything with the label. Raises Unreachable.
    """
    there = await find_roots(cluster, stack=record.stack, or_namespace=record.namespace)
    own = {*(record.own or ()), *([record.namespace_uid] if record.namespace_uid else ())}
    state = space = None
    with contextlib.suppress(PulumiFailed):
        state = await cli.export() if cli is not None else None
    if state is not None:
        uids = await own_in_state(cluster, state, there, stack=record.stack)
        own |= uids
        space = deployed.namespace_of(state)
        space = space if space and space[1] in uids else None
    elif not own:
        own = {each.uid for each in there}
    expires = min((end for each in there if each.uid in own and (end := expiry(each))), default="")
    record = msgspec.structs.replace(record, own=tuple(sorted(own)), expires=expires)
    if record.before is not None:
        return record
    spaces = ((each.name, each.uid) for each in there if not each.namespace and each.uid in own)
    name, uid = space or next(spaces, (record.namespace, None))
    return msgspec.structs.replace(record, namespace=name, namespace_uid=uid)


def expiry(root: ObjectRef) -> str:
    """Return the time at which a stack removes itself, in words; empty if it does not."""
    ttl = root.annotations.get(TTL_ANNOTATION, "")
    if not ttl.isdecimal() or not root.created:
        return ""
    end = datetime.fromisoformat(root.created) + timedelta(seconds=float(ttl))
    return f"{end:%Y-%m-%d %H:%M} UTC"


def _single(kubeconfig: str) -> str | None:
    """Return the file that KUBECONFIG names, if it names exactly one."""
    return str(Path(kubeconfig).absolute()) if kubeconfig and ":" not in kubeconfig else None
