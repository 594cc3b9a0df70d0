"""Which objects belong to a stack: the record that is written before `up`, and the roots that
distinguish a stack from others of the same name."""

from pathlib import Path

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.ownership import made_while_killed, refuse_held, refuse_others
from aiperf_svc.adapters.cluster.preflight.rights import made_types
from aiperf_svc.adapters.cluster.teardown.inventory import (
    StackObjects,
    expiry,
    list_cluster_scoped,
    namespaces_of,
    refuse_taken,
    refuse_taken_outside,
    take_inventory,
    without_dependents,
    without_labelled,
)
from aiperf_svc.adapters.cluster.teardown.leaks import (
    find_roots,
    list_root_types,
    refuse_unread,
    wait_until_gone,
)
from aiperf_svc.adapters.cluster.teardown.removal import remove_by_label
from aiperf_svc.adapters.pulumi import deployed
from aiperf_svc.adapters.pulumi.cli import PulumiCli, PulumiFailed
from aiperf_svc.adapters.pulumi.namesakes import own_in_state, refuse_namesakes, refuse_strangers_of
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.core.cluster.lease import Holder
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.teardown import GONE_S


async def first_record(
    request: StackRequest, cluster: Cluster, home: StateHome, cli: PulumiCli
) -> RunRecord:
    """Record what is needed to remove the stack, before any object of it is created.

    Raises EnvironmentProblem if a stack of this name that belongs to another state is up, or if
    this one could take over objects of others.
    """
    wanted, types = request.plan.config.deployment.namespace, made_types(request.plans)
    known, before, present = home.load(request.stack), None, None
    if wanted.mode == "existing" and wanted.name:
        before = present = await take_inventory(cluster, wanted.name)
        refuse_unread(present, types)
        if known and known.before and known.before.namespace == wanted.name:
            # Objects of an earlier run may still exist. They are not part of the original content.
            before, present = known.before, without_labelled(present, request.stack)
    outside = None
    if any(plan.release is not None for plan in request.plans):
        outside_now = await list_cluster_scoped(cluster)
        refuse_unread(outside_now, types)
        refuse_taken_outside(outside_now, stack=request.stack, plans=request.plans)
        outside = (known.outside if known else None) or outside_now
    record = RunRecord(
        stack=request.stack,
        cluster=cluster.identity,
        kubeconfig=request.used_kubeconfig or _only_file(request.environ.get("KUBECONFIG", "")),
        context=cluster.context,
        backend=cli.backend,
        is_ephemeral=request.is_ephemeral,
        namespace=wanted.name,
        before=before,
        outside=outside,
        types=types,
        own=(known.own or ()) if known else (),
    )
    existing = await find_roots(cluster, stack=request.stack, or_namespace=wanted.name)
    if existing:
        record = await find_own(record, cluster, cli)
        await refuse_others(existing, record, cluster)
    elif not request.is_ephemeral:
        # `up` begins with a refresh, which adopts what others have created.
        state = await cli.export()
        await refuse_strangers_of(cluster, request.stack, state, record.own or ())
    if before is not None and present is not None:
        own = record.own or ()
        refuse_taken(without_dependents(present, own), stack=request.stack, plans=request.plans)
        record = msgspec.structs.replace(record, before=without_dependents(before, own))
    return record


async def remove_unfinished(record: RunRecord, cluster: Cluster, cli: PulumiCli, say: Say) -> None:
    """Remove the roots that a killed `up` was creating, because the next `up` would refuse existing
    ones. Raises EnvironmentProblem if they remain."""
    uids, making = deployed.roots_of(await cli.export(), stack=record.stack)
    existing = await list_root_types(cluster, stack=record.stack, or_namespace=record.namespace)
    found = await made_while_killed(cluster, record.stack, existing, making)
    left = [each for each in found if each.uid not in uids]
    if not left:
        return
    say(f"removing what a killed `pulumi up` was creating: {', '.join(map(str, left))}")
    # A root in its own namespace does not have the record's namespace.
    shared = record.namespace if record.before is not None else None
    wanted = StackObjects(
        stack=record.stack, namespace=shared, own=tuple(each.uid for each in left)
    )
    await remove_by_label(cluster, wanted)
    # These roots are empty namespaces or anchors.
    report = await wait_until_gone(cluster, wanted, timeout_s=GONE_S)
    if report.left:
        raise EnvironmentProblem(f"{report.text} of an `up` that was killed: {report.left[0]}")
    ended = await cli.refresh(clear_pending=True)
    if ended.code:
        raise PulumiFailed("refresh", ended)


async def find_own(record: RunRecord, cluster: Cluster, cli: PulumiCli | None) -> RunRecord:
    """Return the record with the UIDs of the stack's roots and of its own namespace.

    Pulumi's state lists the stack's objects, including those that were being created when it was
    interrupted. Another user's stack may have the same name and label, so if the state cannot be
    read, the record's UIDs are used. Without a state and UIDs, everything with the label counts.
    Raises Refused, Unreachable, and PulumiFailed if the record has no UIDs and the state cannot be
    read.
    """
    existing = await find_roots(cluster, stack=record.stack, or_namespace=record.namespace)
    own = {*(record.own or ()), *([record.namespace_uid] if record.namespace_uid else ())}
    state = space = None
    try:
        state = await cli.export() if cli is not None else None
    except PulumiFailed:
        if not own:
            raise
    if state is not None:
        uids = await own_in_state(cluster, state, existing, stack=record.stack)
        own |= uids
        space = deployed.namespace_of(state)
        space = space if space and space[1] in uids else None
    elif not own:
        own = {each.uid for each in existing}
    expires = min(
        (end for each in existing if each.uid in own and (end := expiry(each))), default=""
    )
    record = msgspec.structs.replace(record, own=tuple(sorted(own)), expires=expires)
    if record.before is not None:
        return record
    spaces = ((each.name, each.uid) for each in existing if not each.namespace and each.uid in own)
    known = record.namespace_uid if state is None else None
    name, uid = space or next(spaces, (record.namespace, known))
    return msgspec.structs.replace(record, namespace=name, namespace_uid=uid)


async def refuse_used(
    record: RunRecord, cluster: Cluster, cli: PulumiCli, me: Holder, *, is_lost: bool = False
) -> None:
    """Raise StackInUse if another process than `me` uses what `pulumi destroy` would delete: the
    stack, or a later one that has replaced it or has its state. `is_lost`: another process has
    taken over the stack itself, and removes it. Raises Refused, Unreachable, PulumiFailed."""
    own = {*(record.own or ())}
    if not own:
        return
    existing = await find_roots(cluster, stack=record.stack, or_namespace=record.namespace)
    others = [each for each in existing if each.uid not in own]
    await refuse_namesakes(cluster, record, others)
    used: set[str] = set() if is_lost else own
    if others:
        made = await own_in_state(cluster, await cli.export(), others, stack=record.stack)
        used |= made - own
    for namespace in namespaces_of(each for each in existing if each.uid in used):
        await refuse_held(cluster, record.stack, namespace, me)


def _only_file(kubeconfig: str) -> str | None:
    """Return the file that KUBECONFIG names, if it names exactly one."""
    return str(Path(kubeconfig).absolute()) if kubeconfig and ":" not in kubeconfig else None
