"""The configs of an experiment's trials."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.load_config import parse_as
from aiperf_svc.config.parameters import with_parameters
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.trials import Trial, describe, plan_trials
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Parameters
from aiperf_svc.workloads.registry import workload_of

SHOWN = 10
"""Maximum refused trials that a message lists."""


class TrialConfig(NamedTuple):
    """A trial and its config."""

    trial: Trial
    config: Config


class CheckedTrials(NamedTuple):
    """The trials of a checked config, kept so they are built only once."""

    config: Config
    members: tuple[TrialConfig, ...]
    """Result of `trial_configs`."""
    different: tuple[Config, ...]
    """The distinct configs of these trials, or of the targets' trials if the config has targets."""


def trial_config(config: Config, parameters: Mapping[str, Any]) -> Config:
    """Return the config of the trial with these parameters, without `experiment`. Raises
    ConfigError naming the parameters."""
    made = with_trial(config, parameters)
    return workload_of(made).trial(made, config.experiment) if config.experiment else made


def with_trial(config: Config, parameters: Mapping[str, Any]) -> Config:
    """Return the template with the parameters of a trial, without the additions of a search or a
    scenario. Raises ConfigError naming the parameters."""
    own = _remaining(config.experiment, parameters)
    return _with(_template(config, own), own, type(config))


def trial_configs(
    config: Config, *, names: Mapping[str, str] | None = None
) -> tuple[TrialConfig, ...]:
    """Return all trials with their configs, in the order of running. Repetitions share a config. A
    search returns the trials at the ends of its ranges, which enclose all others. A config without
    an experiment returns one.

    `names` maps dotted keys to the user's names of these keys. Raises ConfigError listing the
    refused trials.
    """
    if config.experiment is None:
        return (TrialConfig(Trial(1, {}), config),)
    template = _template(config, config.experiment.keys)
    made: dict[str, Config] = {}
    refused: dict[str, str] = {}
    trials = _trials(config.experiment, config.random_seed)
    workload = workload_of(config)
    found = []
    for trial in trials:
        name = repr(trial.parameters)
        if name not in made and name not in refused:
            try:
                own = _remaining(config.experiment, trial.parameters)
                one = _with(template, own, type(config), names)
                made[name] = workload.trial(one, config.experiment)
            except ConfigError as error:
                refused[name] = str(error)
        if name in made:
            found.append(TrialConfig(trial, made[name]))
    refuse_trials(list(refused.values()), len(made) + len(refused))
    return tuple(found)


def refuse_trials(errors: Sequence[str], number: int) -> None:
    """Raise ConfigError if there are errors of trials, out of `number` distinct trials."""
    if len(errors) == 1:
        raise ConfigError(errors[0])
    if errors:
        lines = list(errors[:SHOWN])
        if len(errors) > SHOWN:
            lines.append(f"… and {len(errors) - SHOWN:,} more")
        title = f"{len(errors):,} of {number:,} different trials are refused"
        raise ConfigError("\n  ".join([title, *lines]))


def trial_name(parameters: Mapping[str, Any]) -> str:
    """Return the name of a trial in messages."""
    return one_line(f"trial {describe(parameters)}").rstrip()


def _trials(experiment: Experiment, seed: int) -> tuple[Trial, ...]:
    search = experiment.search
    if search is None:
        return plan_trials(experiment, seed)
    ends = [(each.start, each.end) for each in search.ranges.values()]
    corners = itertools.product(*ends)
    return tuple(
        Trial(number, dict(zip(search.ranges, corner, strict=True)))
        for number, corner in enumerate(corners, start=1)
    )


def _remaining(experiment: Experiment | None, parameters: Mapping[str, Any]) -> Parameters:
    """Return the parameters whose values differ from the template."""
    already_set = experiment.part.given if experiment is not None and experiment.part else ()
    return {key: value for key, value in parameters.items() if key not in already_set}


def _template(config: Config, keys: Iterable[str]) -> Parameters:
    """Return the config without its experiment. Only the parts with these keys are plain data; the
    others are models, which need no second check."""
    varied = {key.partition(".")[0] for key in keys}
    parts = {name: getattr(config, name) for name in type(config).model_fields}
    del parts["experiment"]
    return parts | config.model_dump(mode="json", include=varied)


def _with(
    template: Mapping[str, Any],
    parameters: Mapping[str, Any],
    model: type[Any],
    names: Mapping[str, str] | None = None,
) -> Config:
    changed = with_parameters(template, parameters, model)
    made: Config = parse_as(model, changed, trial_name(parameters), names=names)
    return made
