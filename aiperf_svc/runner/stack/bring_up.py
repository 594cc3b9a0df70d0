"""Brings a stack up: preflight checks, summary, and `pulumi up` until it succeeds or cannot."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import Catalog, ObjectRef, list_objects
from aiperf_svc.adapters.cluster.ownership import (
    LeaseKeeper,
    StackInUse,
    find_lease,
    of_another_state,
    owner_name,
    refuse_held,
)
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
from aiperf_svc.adapters.cluster.watching.admission_watch import AdmissionWatch
from aiperf_svc.adapters.cluster.watching.startup_failure import rule_remedy
from aiperf_svc.adapters.cluster.watching.startup_watch import wait_for_startup_failure
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.pulumi import deployed
from aiperf_svc.adapters.pulumi.cli import PulumiCli, PulumiFailed, is_locked
from aiperf_svc.adapters.pulumi.error_text import causes, in_few_lines
from aiperf_svc.adapters.pulumi.plan_file import write_plan
from aiperf_svc.adapters.pulumi.progress import Progress
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.core.cluster.lease import Holder
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import STACK_LABEL, TTL_ANNOTATION
from aiperf_svc.plan.queue import OPERATIONS
from aiperf_svc.plan.run_id import non_defaults
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.previews import shape_lines, summary
from aiperf_svc.workloads.previews.changes import StackChanges, changes

DEPLOYED = "what is deployed"
GONE_S = 60.0
"""Longest time for the end of what a killed `up` was creating: an empty namespace or an anchor."""


class StateLocked(EnvironmentProblem):
    """Raised when another process holds the stack's state; nothing was created."""


# --- before --------------------------------------------------------------------------------------


async def preview(request: StackRequest, cluster: Cluster, cli: PulumiCli) -> str:
    """Summarise the objects to create and the changes. Raises EnvironmentProblem when the stack is
    in another cluster, or is up with the very run that is asked for."""
    found = await compare(request, cli, identity=cluster.identity)
    if not found.is_new_run:
        await refuse_same_run(request, cluster, await cli.export())
    shapes = shape_lines.lines(request.shapes, request.plans, at_once=request.at_once)
    return "\n".join([summary.as_text(request.plan, found), *shapes])


async def refuse_in_use(request: StackRequest, cluster: Cluster, me: Holder) -> None:
    """Raise StackInUse if another process than `me` works on a stack of this name."""
    namespace = request.plan.config.deployment.namespace.name
    there = await find_roots(cluster, stack=request.stack, or_namespace=namespace)
    for each in namespaces_of(there):
        await refuse_held(cluster, request.stack, each, me)


async def refuse_same_run(request: StackRequest, cluster: Cluster, state: Json) -> None:
    """Refuse to start the same run again: nothing would be measured, and the stack may hold the
    only copy of the results. Raises EnvironmentProblem."""
    stack, run_id = request.stack, request.plan.identity.run_id
    if await _is_up(request, cluster, state, run_id=run_id):
        goes_on = request.config.experiment is not None
        raise EnvironmentProblem(
            f"stack {stack} is up with run {run_id} already, so this would measure nothing; "
            + (
                "resume it from the folder of the command that ended (--resume), "
                if goes_on
                else ""
            )
            + f"fetch the results of that run (aiperf-svc results {stack}), remove it (aiperf-svc "
            f"gc {stack}), or make a new run in its place, which discards its results "
            f"(--generation {request.used_generation + 1})"
        )


async def running_shape(
    request: StackRequest, shapes: Sequence[int], cluster: Cluster, cli: PulumiCli
) -> int | None:
    """Return which of these shapes the stack is up with, and runs the trials of; None if it is up
    with no such run. Raises EnvironmentProblem if it is in another cluster."""
    state = await cli.export()
    if state:
        deployed.check_cluster(state, stack=request.stack, identity=cluster.identity)
    for number in shapes:
        run_id = request.plans[number - 1].identity.run_id
        if state and await _is_up(request, cluster, state, run_id=run_id):
            return number
    return None


async def _is_up(request: StackRequest, cluster: Cluster, state: Json, *, run_id: str) -> bool:
    if not deployed.is_up(state, run_id=run_id):
        return False
    uids, _ = deployed.roots_of(state, stack=request.stack)
    namespace = request.plan.config.deployment.namespace.name
    there = await find_roots(cluster, stack=request.stack, or_namespace=namespace)
    return any(each.uid in uids and not each.is_going for each in there)


async def compare(
    request: StackRequest, cli: PulumiCli, *, identity: str | None = None
) -> StackChanges:
    """Return the differences from the deployed stack."""
    nothing = StackChanges(base=DEPLOYED)
    state = await cli.export()
    if not state:
        return nothing
    if identity is not None:
        deployed.check_cluster(state, stack=request.stack, identity=identity)
    before, plan = deployed.benchmark_of(state), request.plan
    if before is None:
        return nothing
    return StackChanges(
        base=DEPLOYED,
        is_deployed=True,
        changed=changes(before, non_defaults(plan.config)),
        is_new_run=deployed.runs_of(state) != {plan.identity.run_id},
    )


# --- up ------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a stack, and how long it may take."""

    plan: StackPlan
    is_change: bool
    """True if it has been up with another shape."""
    unschedulable_s: float
    """Longest time that a pod may be unschedulable."""
    deadline_mono_s: float | None


async def up(
    request: StackRequest,
    cli: PulumiCli,
    start: Start,
    *,
    keeper: LeaseKeeper,
    interrupts: Interrupts,
) -> bool:
    """Create the stack, or change it to another shape. Returns whether it is up: False if the user
    stopped it. `keeper` holds its Lease as soon as it is there.

    Raises EnvironmentProblem when it cannot come up, or not in time; StateLocked when nothing was
    created; TakenOver when somebody else has taken it.
    """
    cluster, say, plan, end_mono_s = keeper.cluster, keeper.say, start.plan, start.deadline_mono_s
    if not start.is_change:
        try:
            # The user may have thought about the preview for a while.
            await refuse_in_use(request, cluster, keeper.me)
        except StackInUse as error:
            raise StateLocked(str(error)) from error
    await cli.add()
    for key, value in request.secrets.items():
        await cli.set_secret(key, value)
    write_plan(cli.folder, plan)
    progress, stop = Progress("up", say, on_lease=keeper.begin), asyncio.Event()
    watching = wait_for_startup_failure(
        cluster,
        stack=request.stack,
        namespace=plan.config.deployment.namespace.name,
        unschedulable_s=start.unschedulable_s,
        longest_s=plan.config.deployment.ready_timeout / SECOND_NS,
        has_ranks=plan.ranks is not None,
        is_change=start.is_change,
    )
    limit_s = None if end_mono_s is None else max(0.0, end_mono_s - time.monotonic())
    queue = AdmissionWatch(cluster, plan, say)
    at_once = {"at_once": OPERATIONS} if plan.queue is not None else {}
    async with Tasks() as tasks:
        going = tasks.start(cli.up(progress.handle, stop=stop, **at_once), "pulumi up")
        taken = tasks.start(keeper.taken(), "watch the lease")
        failing = tasks.start(watching, "watch pods")
        queued = tasks.start(queue.wait_for_rejection(), "watch the queue")
        stopped = tasks.start(interrupts.reached(1), "interrupts")
        done = await tasks.first(limit_s)
        if going not in done:
            say("interrupting `pulumi up`; it finishes the operations under way")
            stop.set()
        ended = await going
    if taken in done:
        raise taken.result()
    if stopped in done:
        return False
    for cause in (failing, queued):
        if cause in done:
            raise EnvironmentProblem(f"the stack cannot come up: {cause.result()}")
    if not done:
        raise EnvironmentProblem("--timeout: the stack did not come up in time")
    if ended.code and not progress.has_begun and is_locked(ended):
        raise StateLocked(
            f"stack {request.stack}: another process holds its state, and nothing was created: "
            f"{ended.reason}"
        )
    if ended.code:
        found = causes(progress.errors)
        why = in_few_lines(found) if found else ended.reason
        remedy = rule_remedy(why)
        raise EnvironmentProblem(f"`pulumi up` failed: {why}" + (f"\n  {remedy}" if remedy else ""))
    await queue.begin()
    return True


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
