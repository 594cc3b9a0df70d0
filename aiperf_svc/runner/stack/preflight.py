"""Runs the preflight checks of a stack, of each of its shapes."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.preflight.checklist import ReadObjects, preflight
from aiperf_svc.adapters.cluster.watching.startup_watch import UNSCHEDULABLE_S
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.plan.release import name_of
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.previews import trial_lists

MARKS = {"ok": "✓", "warning": "!", "failed": "✗", "not checked": "?"}


@dataclass(frozen=True)
class CheckedShapes:
    """What the preflight checks of some shapes have found."""

    refused: dict[int, EnvironmentProblem] = field(default_factory=dict)
    """Shapes that cannot start, with the reason."""
    unschedulable_s: dict[int, float] = field(default_factory=dict)
    """Time that a pod of each shape that passed may stay unschedulable."""


async def check_shapes(
    request: StackRequest,
    shapes: Sequence[int],
    cluster: Cluster,
    interrupts: Interrupts,
    *,
    say: Say,
) -> CheckedShapes:
    """Run the preflight checks of these shapes, until an interrupt. Raises ConfigError if one asks
    for another config."""
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
            checks = await interrupts.result_of(check(cluster, plan, say=say, objects=objects))
        except EnvironmentProblem as error:
            found.refused[number] = error
            continue
        if checks is None:
            break
        found.unschedulable_s[number] = unschedulable_limit_s(checks, plan)
    return found


def rule_inputs(plan: StackPlan) -> str:
    """Return a text that is equal for two shapes whose objects differ only in numbers, sizes and
    the names of one run, which admission rules do not tell apart. Quotas, limit ranges and the
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
    cluster: Cluster,
    plan: StackPlan,
    *,
    say: Say,
    objects: ReadObjects | None = None,
) -> tuple[Check, ...]:
    """Run every preflight check, and print those that passed. Raises EnvironmentProblem with those
    that failed, ConfigError when one of them asks for another config. `objects` as in
    `preflight`."""

    def tell(check: Check) -> None:
        # The error of this command, or of the shape, names those that failed.
        if check.state != "failed":
            say(check_line(check))

    checks = await preflight(cluster, plan, objects=objects, on_check=tell)
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


def unschedulable_limit_s(checks: tuple[Check, ...], plan: StackPlan) -> float:
    """Return how long a pod may stay unschedulable: longer if nodes must be added first."""
    has_room = any(each.name == "capacity" and each.state == "ok" for each in checks)
    return UNSCHEDULABLE_S if has_room else plan.config.deployment.ready_timeout / SECOND_NS
