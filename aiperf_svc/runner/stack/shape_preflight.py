"""Which shapes of an experiment can come up, by the preflight checks of each."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner import trial_lists
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import bring_up
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.teardown import Say


@dataclass(frozen=True)
class CheckedShapes:
    """What the preflight checks of some shapes have found."""

    fitting: list[int] = field(default_factory=list)
    """Numbers of those that passed."""
    refused: dict[int, EnvironmentProblem] = field(default_factory=dict)
    """Those that cannot come up."""
    unschedulable_s: dict[int, float] = field(default_factory=dict)
    """Time that a pod of those that passed may stay unschedulable."""


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
    found = CheckedShapes()
    for number in shapes:
        plan = request.plans[number - 1]
        if number > 1:
            say(trial_lists.shape_name(request.shapes, number))
        # Those of the other shapes have the same kinds and labels.
        objects = functools.partial(request.manifests, number) if number == shapes[0] else None
        try:
            checks = await interrupts.result_of(
                bring_up.check(cluster, plan, say=say, objects=objects)
            )
        except EnvironmentProblem as error:
            found.refused[number] = error
            continue
        if checks is None:
            break
        found.unschedulable_s[number] = bring_up.unschedulable_limit_s(checks, plan)
        found.fitting.append(number)
    return found
