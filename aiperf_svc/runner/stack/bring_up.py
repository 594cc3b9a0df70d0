"""Brings a stack up: preflight checks, summary, and `pulumi up` until it succeeds or cannot."""

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.ownership import LeaseKeeper, refuse_held
from aiperf_svc.adapters.cluster.preflight.checklist import ReadObjects, preflight
from aiperf_svc.adapters.cluster.teardown.inventory import namespaces_of
from aiperf_svc.adapters.cluster.teardown.leaks import find_roots
from aiperf_svc.adapters.cluster.watching.admission_watch import AdmissionWatch
from aiperf_svc.adapters.cluster.watching.startup_failure import rule_remedy
from aiperf_svc.adapters.cluster.watching.startup_watch import (
    UNSCHEDULABLE_S,
    wait_for_startup_failure,
)
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.pulumi import deployed
from aiperf_svc.adapters.pulumi.cli import PulumiCli, is_locked
from aiperf_svc.adapters.pulumi.error_text import causes, in_few_lines
from aiperf_svc.adapters.pulumi.plan_file import write_plan
from aiperf_svc.adapters.pulumi.progress import Progress
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.lease import Holder
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.queue import OPERATIONS
from aiperf_svc.plan.release import name_of
from aiperf_svc.plan.run_id import non_defaults
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.previews import shape_lines, summary, trial_lists
from aiperf_svc.workloads.previews.changes import StackChanges, changes

DEPLOYED = "what is deployed"
MARKS = {"ok": "✓", "warning": "!", "failed": "✗", "not checked": "?"}


class StateLocked(EnvironmentProblem):
    """Raised if another process uses the stack or its state, or if that cannot be read. Nothing was
    created."""


# --- checks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedShapes:
    """Results of the preflight checks of some shapes."""

    refused: dict[int, EnvironmentProblem] = field(default_factory=dict)
    """Shapes that cannot start, with the reason."""
    unschedulable_s: dict[int, float] = field(default_factory=dict)
    """Time for which pods may stay unschedulable, for each shape that passed."""


async def check_shapes(
    request: StackRequest, shapes: Sequence[int], cluster: Cluster, *, say: Say
) -> CheckedShapes:
    """Run the preflight checks of these shapes. Raises ConfigError if a failure needs another
    config."""
    found, tried = CheckedShapes(), set[str]()
    for number in shapes:
        plan = request.plans[number - 1]
        if number > 1:
            say(trial_lists.shape_name(request.shapes, number))
        differences = rule_inputs(plan)
        is_tried = differences in tried
        tried.add(differences)
        objects = None if is_tried else functools.partial(request.manifests, number)
        try:
            checks = await check(cluster, plan, say=say, objects=objects)
        except EnvironmentProblem as error:
            found.refused[number] = error
            continue
        has_room = any(each.name == "capacity" and each.state == "ok" for each in checks)
        # Without room, nodes must be added first.
        longest_s = plan.config.deployment.ready_timeout / SECOND_NS
        found.unschedulable_s[number] = UNSCHEDULABLE_S if has_room else longest_s
    return found


def rule_inputs(plan: StackPlan) -> str:
    """Return a text that is equal for two shapes whose objects differ only in numbers, sizes and
    the names of one run, which admission rules do not distinguish. Quotas, limit ranges and the
    capacity are checked for each shape."""
    pods = [
        (
            pod.name,
            pod.image_names,
            pod.total.gpu,
            sorted(pod.total.devices),
            pod.placement,
            pod.scheduler,
            [each.node for each in pod.sets],
            [(each.kind, each.source) for each in pod.all_volumes],
        )
        for pod in plan.scheduled
    ]
    released = [name_of(each) for each in plan.release.objects] if plan.release else []
    images = plan.custom_images
    return repr((pods, released, images, plan.pod_security, sorted(plan.secret_keys)))


async def check(
    cluster: Cluster, plan: StackPlan, *, say: Say, objects: ReadObjects | None
) -> tuple[Check, ...]:
    """Run every preflight check, and print the passed ones. Raises EnvironmentProblem with the
    failed ones, ConfigError if one of them needs another config. `objects` as in `preflight`."""

    def print_passed(check: Check) -> None:
        # The error of this command, or of the shape, lists the failed checks.
        if check.state != "failed":
            say(check_line(check))

    checks = await preflight(cluster, plan, objects=objects, on_check=print_passed)
    failed = [each for each in checks if each.state == "failed"]
    if failed:
        lines = [check_line(each) for each in failed]
        is_config_error = any(each.is_config_error for each in failed)
        kind = ConfigError if is_config_error else EnvironmentProblem
        raise kind("\n  ".join(["the stack cannot come up:", *lines]))
    return checks


def check_line(check: Check) -> str:
    """Format one check as one line."""
    remedy = f" → {check.remedy}" if check.remedy and check.state != "ok" else ""
    return f"{MARKS[check.state]} {check.name}: {check.detail}{remedy}"


# --- preview -------------------------------------------------------------------------------------


async def preview(request: StackRequest, cluster: Cluster, cli: PulumiCli) -> str:
    """Summarise the objects to create and the changes. Raises EnvironmentProblem if the stack is in
    another cluster, or is already up with the requested run."""
    state = await cli.export()
    deployed.check_cluster(state, stack=request.stack, identity=cluster.identity)
    found = compare(request, state)
    if not found.is_new_run:
        await refuse_same_run(request, cluster, state)
    shapes = shape_lines.lines(request.shapes, request.plans, at_once=request.at_once)
    return "\n".join([summary.as_text(request.plan, found), *shapes])


async def refuse_in_use(request: StackRequest, cluster: Cluster, me: Holder) -> None:
    """Raise StackInUse if another process than `me` uses a stack of this name. Raises Refused,
    Unreachable."""
    namespace = request.plan.config.deployment.namespace.name
    existing = await find_roots(cluster, stack=request.stack, or_namespace=namespace)
    for each in namespaces_of(existing):
        await refuse_held(cluster, request.stack, each, me)


async def refuse_same_run(request: StackRequest, cluster: Cluster, state: Json) -> None:
    """Refuse to start the same run again: nothing would be measured, and the stack may hold the
    only copy of the results. Raises EnvironmentProblem."""
    stack, run_id = request.stack, request.plan.identity.run_id
    if await _is_up(request, cluster, state, run_id=run_id):
        resume = "resume it from the folder of the command that ended (--resume), "
        remedy = resume if request.config.experiment is not None else ""
        raise EnvironmentProblem(
            f"stack {stack} is up with run {run_id} already, so this would measure nothing; "
            f"{remedy}fetch the results of that run (aiperf-svc results {stack}), remove it "
            f"(aiperf-svc gc {stack}), or make a new run in its place, which discards its results "
            f"(--generation {request.used_generation + 1})"
        )


async def running_shape(
    request: StackRequest, shapes: Sequence[int], cluster: Cluster, cli: PulumiCli
) -> int | None:
    """Return which of these shapes the stack is running; None if it runs none of them. Raises
    EnvironmentProblem if it is in another cluster."""
    state = await cli.export()
    deployed.check_cluster(state, stack=request.stack, identity=cluster.identity)
    for number in shapes:
        run_id = request.plans[number - 1].identity.run_id
        if await _is_up(request, cluster, state, run_id=run_id):
            return number
    return None


async def _is_up(request: StackRequest, cluster: Cluster, state: Json, *, run_id: str) -> bool:
    if not deployed.is_up(state, run_id=run_id):
        return False
    uids, _ = deployed.roots_of(state, stack=request.stack)
    namespace = request.plan.config.deployment.namespace.name
    existing = await find_roots(cluster, stack=request.stack, or_namespace=namespace)
    return any(each.uid in uids and not each.is_going for each in existing)


def compare(request: StackRequest, state: Json) -> StackChanges:
    """Return the differences from the deployed stack with this state."""
    before, plan = deployed.benchmark_of(state), request.plan
    if before is None:
        return StackChanges(base=DEPLOYED)
    return StackChanges(
        base=DEPLOYED,
        is_deployed=True,
        changed=changes(before, non_defaults(plan.config)),
        is_new_run=deployed.runs_of(state) != {plan.identity.run_id},
    )


# --- up ------------------------------------------------------------------------------------------


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
    stopped it. `keeper` holds its Lease as soon as it exists.

    Raises EnvironmentProblem if it cannot come up, or not in time; StateLocked if nothing was
    created; TakenOver if another process has taken it over.
    """
    cluster, say, plan, end_mono_s = keeper.cluster, keeper.say, start.plan, start.deadline_mono_s
    if not start.is_change:
        try:
            # The user may have taken a while to confirm the preview.
            await refuse_in_use(request, cluster, keeper.me)
        except EnvironmentProblem as error:
            raise StateLocked(str(error)) from error
    await cli.add()
    for key, value in request.secrets.items():
        await cli.set_secret(key, value)
    write_plan(cli.folder, plan)
    progress, stop = Progress("up", say, on_lease=keeper.begin), asyncio.Event()
    limit_s = None if end_mono_s is None else max(0.0, end_mono_s - time.monotonic())
    queue = AdmissionWatch(cluster, plan, say)
    at_once = {"at_once": OPERATIONS} if plan.queue is not None else {}
    async with Tasks() as tasks:
        going = tasks.start(cli.up(progress.handle, stop=stop, **at_once), "pulumi up")
        taken = tasks.start(keeper.taken(), "watch the lease")
        failing = tasks.start(_watch_pods(start, keeper), "watch pods")
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


async def _watch_pods(start: Start, keeper: LeaseKeeper) -> str:
    """Wait until a pod shows that the stack cannot come up, and return why. Stacks in other
    namespaces can have the same name and label. The name of a namespace that Pulumi names is known
    as soon as the Lease exists, before any pod can fail."""
    plan = start.plan
    return await wait_for_startup_failure(
        keeper.cluster,
        stack=plan.identity.stack,
        namespace=plan.config.deployment.namespace.name or await keeper.namespace(),
        unschedulable_s=start.unschedulable_s,
        longest_s=plan.config.deployment.ready_timeout / SECOND_NS,
        has_ranks=plan.ranks is not None,
        is_change=start.is_change,
    )
