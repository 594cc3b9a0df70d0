"""Plans what a config of any kind runs: processes here, or a stack."""

from collections.abc import Callable, Collection, Sequence
from ipaddress import IPv4Address
from typing import Any, NamedTuple

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.image_names import check_replacement
from aiperf_svc.config.search import MOST_POINTS
from aiperf_svc.config.workload import Config, WorkloadConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.experiments import largest_topology
from aiperf_svc.plan.fan_out import plan_fan_out
from aiperf_svc.plan.index_pods import KEY
from aiperf_svc.plan.lifetime import LongestTimes, load_times, one_after_the_other
from aiperf_svc.plan.ranks import RANK_DIR, VOLUME_DIR, RankNeeds
from aiperf_svc.plan.run_id import OrderedExperiment, in_order, order_experiment
from aiperf_svc.plan.stack import StackPlan, longest_times, plan_stack
from aiperf_svc.plan.topology import Facts, Topology, plan, plan_ranks
from aiperf_svc.workloads.base import Rank, default_image
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.roles import role_names
from aiperf_svc.workloads.shapes import (
    Shape,
    index_shapes,
    is_fanned_out,
    is_side_by_side,
    shape_config,
    shapes_of,
    without_trials,
)
from aiperf_svc.workloads.trials import trial_config


def plan_processes(shape: Shape, facts: Facts) -> Topology:
    """Plan the topology for trials of one shape at a place described by `facts`: one that is large
    enough for each. Raises ConfigError."""
    return largest_topology([_plan_trial(each, facts) for each in shape.configs])


def _plan_trial(config: Config, facts: Facts) -> Topology:
    if isinstance(config, BenchmarkConfig):
        return plan(config, facts)
    return plan_ranks(config.deployment, len(role_names(config)), facts)


class AllShapes(NamedTuple):
    """The shapes of a config, and what the plans of their stacks have in common. It is made once,
    so that a plan costs the same whatever the number of shapes."""

    config: Config
    shapes: tuple[Shape, ...]
    experiment: OrderedExperiment | None
    whole: Config | None
    """The config in order if one stack runs all shapes in turn, else None."""
    lifetime: LongestTimes | None
    """The times of all shapes if one stack runs them in turn, else None."""


def all_shapes(config: Config, shapes: Sequence[Shape]) -> AllShapes:
    """Return what the plans for these shapes of a config have in common."""
    experiment = order_experiment(config)
    if len(shapes) == 1 or is_side_by_side(config):
        return AllShapes(config, tuple(shapes), experiment, None, None)
    times = [
        longest_times(
            each.configs[0].model_copy(update={"experiment": config.experiment}),
            longest_trials(config, each.configs),
            steps_ns=_all_steps_ns(config, each),
        )
        for each in shapes
    ]
    whole = in_order(config, experiment)
    return AllShapes(config, tuple(shapes), experiment, whole, one_after_the_other(times))


def plan_shape_stack(
    config: Config,
    *,
    stack: str,
    version: str,
    generation: int = 1,
    image: str = "",
    workload_image: str = "",
    is_held: bool = False,
    upload_into: str = "",
    shape: int = 1,
    known: AllShapes | None = None,
    finished: Collection[int] = (),
) -> StackPlan:
    """Plan a stack of any kind; for an experiment, one whose pods can run each trial of one shape.

    `image` and `workload_image` replace those in the config. `shape` is the number of the shape
    among those of the config, or `known`, if given; `finished` are the numbers of trials that are
    not run again. The stack is for one shape if shapes run side by side, else for all of them in
    turn. Other arguments and errors are those of `plan.stack.plan_stack`.
    """
    known = known or all_shapes(config, without_trials(shapes_of(config, "cluster"), finished))
    check_shape(shape, known.shapes)
    if is_fanned_out(config):
        if is_held:
            raise ConfigError(f"{KEY}: indexes begin one after the other, at no common start")
        (every,) = known.shapes
        return plan_fan_out(
            shape_config(config, every),
            stack=stack,
            version=version,
            indexes=[each.configs for each in index_shapes(config, every.members)],
            generation=generation,
            image=image,
            upload_into=upload_into,
            experiment=known.experiment,
        )
    chosen = known.shapes[shape - 1]
    own = shape_config(config, chosen)
    needs: RankNeeds | None = None
    image_notes: tuple[str, ...] = ()
    if not isinstance(own, BenchmarkConfig):
        own, image_notes = _replace_workload_image(own, workload_image)
        needs = needs_of(own, version=version)
        needs = msgspec.structs.replace(needs, steps_ns=_all_steps_ns(config, chosen))
    made = plan_stack(
        own,
        stack=stack,
        version=version,
        generation=generation,
        image=image,
        needs=needs,
        trials=longest_trials(config, chosen.configs),
        is_held=is_held,
        upload_into=upload_into,
        whole=known.whole,
        lifetime=known.lifetime,
        experiment=known.experiment,
    )
    notes = [*image_notes, *made.notes]
    if len(known.shapes) == 1 and is_side_by_side(config):
        notes.append("experiment.parallel: all trials run in the same pods, one after the other")
    return msgspec.structs.replace(made, notes=tuple(notes))


def _replace_workload_image(
    config: WorkloadConfig[Any], image: str
) -> tuple[WorkloadConfig[Any], tuple[str, ...]]:
    """Return the config with `image` (AIPERF_WORKLOAD_IMAGE) as that of the ranks, and notes about
    what it replaces. Raises ConfigError if the config pins another image."""
    if not image:
        return config, ()
    note = check_replacement(
        config.workload.image, image, key="workload.image", variable="AIPERF_WORKLOAD_IMAGE"
    )
    own = config.workload.model_copy(update={"image": image})
    return config.model_copy(update={"workload": own}), (note,) if note else ()


def check_shape(number: int, shapes: Sequence[Shape]) -> None:
    """Raise ConfigError if there is no shape of this number."""
    if not 1 <= number <= len(shapes):
        raise ConfigError(
            f"aiperf:shape: {number}: shapes of the trials of this stack are numbered from 1 to "
            f"{len(shapes)}"
        )


def longest_trials(config: Config, configs: Sequence[Config]) -> tuple[Config, ...]:
    """Return the configs of all trials: those that are planned, or of a search, whose `configs` are
    those at the ends of its ranges, as many as it can have at most."""
    search = config.experiment.search if config.experiment is not None else None
    if search is None or not isinstance(config, BenchmarkConfig):
        return tuple(configs)
    from aiperf_svc.core.experiments.search_trials import lengths

    short = (*configs, *(configs[-1] for _ in range(MOST_POINTS - len(configs))))
    if not search.most_longer:
        return short
    end = {key: span.end for key, span in search.ranges.items()}
    confirming = trial_config(config, end | lengths(config.load)[1])
    return (*short, *(confirming for _ in range(search.most_longer)))


ReplayNs = Callable[[BenchmarkConfig], int | None]
"""How long a config's fixed schedule is; None if that is unknown."""


def no_length(config: BenchmarkConfig) -> int | None:
    """Return the length of a fixed schedule whose trace has not been read: unknown."""
    return None


def _all_steps_ns(config: Config, shape: Shape) -> int:
    """Return the longest time of all steps of a shape's trials, 0 without a workload."""
    if isinstance(config, BenchmarkConfig):
        return 0
    trials = longest_trials(config, shape.configs)
    pauses_ns = (len(trials) - 1) * (config.experiment.cooldown if config.experiment else 0)
    return sum(trial_times(each).longest or 0 for each in trials) + pauses_ns


class TrialTimes(NamedTuple):
    """Times of a trial in ns; None if nobody knows."""

    expected: int | None
    longest: int | None


def trial_times(config: Config, replay_ns: ReplayNs = no_length) -> TrialTimes:
    """Return the times of a trial, as far as its config says: those of its warmup and its load, and
    at most their grace periods. The time of a number of requests is unknown; steps of a workload
    have only a longest time, a fixed schedule only an expected one."""
    if not isinstance(config, BenchmarkConfig):
        return TrialTimes(None, _steps_ns(config))
    times, warmup = load_times(config), config.load.warmup
    length_ns = replay_ns(config) or config.load.longest_schedule
    if not times.is_bounded and (length_ns is None or (warmup and not warmup.duration)):
        return TrialTimes(None, None)
    load_ns = min(each for each in (config.load.end, length_ns) if each is not None)
    expected = load_ns + ((warmup.duration or 0) if warmup else 0)
    return TrialTimes(expected, times.load if times.is_bounded else None)


def needs_of(config: WorkloadConfig[Any], *, version: str) -> RankNeeds:
    """What a workload needs of a stack."""
    workload, spec = workload_of(config), config.workload
    return RankNeeds(
        count=len(role_names(config)),
        image=spec.image or default_image(spec.kind, version),
        capabilities=workload.needs_privilege(config),
        steps_ns=_steps_ns(config),
    )


_FIRST_ADDRESS = IPv4Address("192.0.2.0")
"""First address of ranks that are not there yet, in a range for documentation (RFC 5737)."""


def _steps_ns(config: WorkloadConfig[Any]) -> int:
    """Longest time of all steps. Their names and timeouts do not depend on where the ranks are."""
    ranks = [
        Rank(
            number=number,
            role=role,
            address=str(_FIRST_ADDRESS + number),
            node=f"node-{number}",
            work=f"{RANK_DIR}/work",
            volume=VOLUME_DIR,
            agent=f"{RANK_DIR}/rank_agent.sh",
        )
        for number, role in enumerate(role_names(config))
    ]
    steps = workload_of(config).steps(config, ranks)
    attempts = 1 + config.workload.retries
    return sum(
        attempts * step.timeout_ns * (config.repetitions if step.is_measured else 1)
        for step in steps
    )
