"""Plans the processes or the stack of a benchmark for all trials of one shape."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from aiperf_svc.config.search import MAX_POINTS
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.experiments import largest_topology
from aiperf_svc.plan.index_pods import KEY
from aiperf_svc.plan.lifetime import sequential_times
from aiperf_svc.plan.run_id import in_order, order_experiment
from aiperf_svc.plan.stack import SharedByShapes, StackPlan, StackSettings, plan_kind
from aiperf_svc.plan.topology import Facts, Topology
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import (
    Shape,
    index_shapes,
    is_fanned_out,
    is_side_by_side,
    shape_config,
    shapes_of,
)
from aiperf_svc.workloads.trials import trial_config


def plan_processes(shape: Shape, facts: Facts) -> Topology:
    """Plan processes that suffice for each trial of one shape on a machine with these facts. Raises
    ConfigError."""
    topologies = [workload_of(each).topology(each, facts) for each in shape.configs]
    return largest_topology(topologies)


class AllShapes(NamedTuple):
    """The shapes of a config, and the common part of their stacks' plans. It is computed once, so
    the cost of a plan does not depend on the number of shapes."""

    config: Config
    shapes: tuple[Shape, ...]
    shared: SharedByShapes


def all_shapes(
    config: Config, shapes: Sequence[Shape], *, has_own_stacks: bool = False
) -> AllShapes:
    """Return the common part of the plans for these shapes of a config. `has_own_stacks`: each
    shape has its own stack, even if shapes do not run side by side."""
    experiment = order_experiment(config)
    if len(shapes) == 1 or has_own_stacks or is_side_by_side(config):
        return AllShapes(config, tuple(shapes), SharedByShapes(experiment))
    workload = workload_of(config)
    times = [
        workload.longest_times(
            each.configs[0].model_copy(update={"experiment": config.experiment}),
            longest_trials(config, each.configs),
        )
        for each in shapes
    ]
    shared = SharedByShapes(experiment, in_order(config, experiment), sequential_times(times))
    return AllShapes(config, tuple(shapes), shared)


def plan_stack(
    config: Config,
    settings: StackSettings,
    *,
    shape: int = 1,
    known: AllShapes | None = None,
) -> StackPlan:
    """Plan a stack; for an experiment, one whose pods can run each trial of one shape.

    `shape` is a number among the config's shapes, or among `known` if passed. The stack is for one
    shape if shapes run side by side, else for all of them in turn. Raises ConfigError.
    """
    known = known or all_shapes(config, shapes_of(config, "cluster"))
    check_shape(shape, known.shapes)
    workload = workload_of(config)
    if is_fanned_out(config):
        if settings.run.is_held:
            raise ConfigError(f"{KEY}: indexes begin one after another, at no common start")
        (every,) = known.shapes
        indexes = [each.configs for each in index_shapes(config, every.members)]
        kind = workload.index_stack(shape_config(config, every), indexes)
        return plan_kind(kind, settings, known.shared)
    chosen = known.shapes[shape - 1]
    trials = longest_trials(config, chosen.configs)
    kind = workload.stack(shape_config(config, chosen), trials, settings)
    plan = plan_kind(kind, settings, known.shared)
    if len(known.shapes) == 1 and is_side_by_side(config):
        note = "experiment.parallel: all trials run in the same pods, one after another"
        plan = msgspec.structs.replace(plan, notes=(*plan.notes, note))
    return plan


def check_shape(number: int, shapes: Sequence[Shape]) -> None:
    """Raise ConfigError unless a shape has this number."""
    if not 1 <= number <= len(shapes):
        raise ConfigError(
            f"aiperf:shape: {number}: shapes of the trials of this stack are numbered from 1 to "
            f"{len(shapes)}"
        )


def longest_trials(config: Config, configs: Sequence[Config]) -> tuple[Config, ...]:
    """Return the configs of all trials: the planned ones or, for a search, the maximum number of
    trials at the ends of its ranges, which are `configs`."""
    search = config.experiment.search if config.experiment is not None else None
    inference = config.inference
    if search is None or inference is None:
        return tuple(configs)
    from aiperf_svc.core.experiments.search_trials import lengths

    short = (*configs, *(configs[-1] for _ in range(MAX_POINTS - len(configs))))
    if not search.max_longer_trials:
        return short
    end = {key: span.end for key, span in search.ranges.items()}
    confirming = trial_config(config, end | lengths(inference.load)[1])
    return (*short, *(confirming for _ in range(search.max_longer_trials)))
