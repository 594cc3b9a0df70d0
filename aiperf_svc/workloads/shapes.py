"""Groups trials into shapes by their needs besides the load. The trials of a shape run one after
another in the same processes or pods. Shapes also run one after another, or at the same time in
separate stacks or as the indexes of Jobs."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from aiperf_svc.config.experiment import Blocks, Part, has_parameters
from aiperf_svc.config.parameters import is_below
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Parameters
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.trials import TrialConfig, trial_configs, with_trial

Where = Literal["local", "cluster"]
SHAPE_KEYS: dict[Where, tuple[str, ...]] = {
    "local": ("deployment", "workers"),
    "cluster": (
        "deployment",
        "workers",
        "workload.image",
        "workload.env",
        "workload.secret_env",
        # They determine what the pods may reach, or which secrets they have.
        "endpoint.url",
        "endpoint.urls",
        "endpoint.api_key_env",
        "tokenizer.name",
        "dataset.public",
        "dataset.max_download",
    ),
}
"""Keys whose values define a shape. So does the number of a workload's ranks, whatever keys
determine it."""
MAX_AUTO_STACKS = 16
"""Maximum stacks at the same time if only the room limits them: each takes a process of Pulumi of
some hundred megabytes on the machine of the command."""


class Shape(NamedTuple):
    """Trials that run in the same processes or pods."""

    parameters: Parameters
    """The parameters that define this shape."""
    members: tuple[TrialConfig, ...]
    """In the order of running."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials without their configs."""
        return tuple(each.trial for each in self.members)

    @property
    def configs(self) -> tuple[Config, ...]:
        """The config of each trial."""
        return tuple(each.config for each in self.members)


def shapes(
    members: Sequence[TrialConfig], where: Where, blocks: Blocks | None = None
) -> tuple[Shape, ...]:
    """Group trials by shape, in the order of each shape's first trial. In `blocks` only consecutive
    trials are grouped, so a shape occurs again in each visit."""
    restarts = blocks is not None and where == "cluster" and blocks.restarts_target
    groups: list[list[TrialConfig]] = []
    latest: dict[str, list[TrialConfig]] = {}
    for each in members:
        own: list[object] = [_parameters(each.trial, where)]
        own += workload_of(each.config).shape(each.config)
        own += [f"visit {each.trial.repetition}"] if restarts else []
        name = json.dumps(own, sort_keys=True, default=str)
        if name not in latest:
            latest = {name: []} if blocks is not None else latest | {name: []}
            groups.append(latest[name])
        latest[name].append(each)
    return tuple(Shape(_parameters(group[0].trial, where), tuple(group)) for group in groups)


def shapes_of(
    config: Config, where: Where, members: Sequence[TrialConfig] = ()
) -> tuple[Shape, ...]:
    """Return the shapes of a config's trials (`members`, if known) in the order in which they
    begin. A config without an experiment has one shape. Raises ConfigError if a trial is invalid or
    a search would need several shapes."""
    members = members or trial_configs(config)
    if where == "cluster" and is_fanned_out(config):
        # Everyone else sees one run of all trials.
        return (Shape({}, tuple(members)),)
    found = shapes(members, where, config.experiment.blocks if config.experiment else None)
    if config.experiment is not None and config.experiment.priority:
        found = in_order(found, config.experiment.priority)
    if len(found) > 1 and config.search is not None:
        unit = "processes" if where == "local" else "pods"
        keys = ", ".join(dict.fromkeys(key for each in found for key in each.parameters))
        raise ConfigError(
            f"experiment.search: {keys or 'the number of ranks'} needs other {unit} for each "
            "value, which only `aiperf-svc run` and `profile` start one after another"
        )
    return found


def index_shapes(config: Config, members: Sequence[TrialConfig] = ()) -> tuple[Shape, ...]:
    """Return the shapes for the indexes of Jobs, in the order in which they begin; none for a
    config without Jobs. Raises ConfigError."""
    if not is_fanned_out(config):
        return ()
    assert config.experiment is not None
    found = shapes(members or trial_configs(config), "cluster")
    return in_order(found, config.experiment.priority)


def without_trials(found: Sequence[Shape], finished: Collection[int]) -> tuple[Shape, ...]:
    """Return the shapes without the trials of these numbers. A shape without remaining trials is
    unchanged, so all shapes keep their numbers."""
    return tuple(
        each._replace(members=left) if (left := _rest(each, finished)) else each for each in found
    )


def _rest(shape: Shape, finished: Collection[int]) -> tuple[TrialConfig, ...]:
    return tuple(each for each in shape.members if each.trial.number not in finished)


def in_order(found: Sequence[Shape], priority: Sequence[Mapping[str, Any]]) -> tuple[Shape, ...]:
    """Sort shapes by the first entry of `priority` that matches any of their trials. Shapes without
    a match keep their order at the end."""

    def position(shape: Shape) -> int:
        wanted = (
            at
            for at, each in enumerate(priority)
            if any(has_parameters(trial.parameters, each) for trial in shape.trials)
        )
        return next(wanted, len(priority))

    return tuple(sorted(found, key=position))


def is_side_by_side(config: Config) -> bool:
    """Return whether the shapes of a config run at the same time in separate stacks."""
    experiment = config.experiment
    return experiment is not None and experiment.parallel != 1 and experiment.fan_out == "stacks"


def max_parallel(parallel: int | str) -> int:
    """Return the maximum shapes at the same time; `parallel` is `experiment.parallel`."""
    return MAX_AUTO_STACKS if isinstance(parallel, str) else parallel


def is_fanned_out(config: Config) -> bool:
    """Return whether the shapes of a config are indexes of Jobs on a cluster."""
    return config.experiment is not None and config.experiment.fan_out == "jobs"


def shape_config(config: Config, shape: Shape) -> Config:
    """Return the config for the processes or pods of one shape: the same experiment, limited to the
    trials of the shape. It is the config itself if all trials have the same shape."""
    experiment = config.experiment
    if experiment is None or config.search is not None:
        return config
    part = Part(trials=tuple(t.number for t in shape.trials), given=tuple(shape.parameters))
    if not part.given and len(part.trials) == experiment.size:
        return config
    # A scenario extends the config of a trial, and the trial's runner adds it again.
    made = shape.configs[0]
    if experiment.scenario is not None:
        made = with_trial(config, shape.trials[0].parameters)
    return made.model_copy(update={"experiment": experiment.model_copy(update={"part": part})})


def _parameters(trial: Trial, where: Where) -> Parameters:
    return {
        key: value
        for key, value in trial.parameters.items()
        if any(is_below(key, each) or is_below(each, key) for each in SHAPE_KEYS[where])
    }
