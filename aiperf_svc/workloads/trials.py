"""The configs of an experiment's trials."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.load_config import parse_as
from aiperf_svc.config.parameters import with_parameters
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.trials import Trial, describe, plan_trials
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

SHOWN = 10
"""Most refused trials that a message lists."""


class TrialConfig(NamedTuple):
    """A trial and its config."""

    trial: Trial
    config: Config


class CheckedTrials(NamedTuple):
    """The trials of a config that has been checked, so that they are made only once."""

    config: Config
    members: tuple[TrialConfig, ...]
    """As `trial_configs` returns them."""
    different: tuple[Config, ...]
    """Each different config of these, or of the targets' trials if the config has targets."""


def trial_config(config: Config, parameters: Mapping[str, Any]) -> Config:
    """Return the config of the trial with these parameters, which has no `experiment`. Raises
    ConfigError that names them."""
    return _as_asked(with_trial(config, parameters), config.experiment)


def with_own_prompts(config: Config, number: int) -> Config:
    """Return the config of a trial with prompts that no other trial has sent, since the server may
    have those in a cache; unless the config says which variant it wants."""
    if not isinstance(config, BenchmarkConfig) or config.dataset.variant is not None:
        return config
    dataset = config.dataset.model_copy(update={"variant": number})
    return config.model_copy(update={"dataset": dataset})


def with_trial(config: Config, parameters: Mapping[str, Any]) -> Config:
    """Return the template with the parameters of a trial, without what a search or a scenario adds.
    Raises ConfigError that names them."""
    own = _not_given(config.experiment, parameters)
    return _with(_template(config, own), own, type(config))


def trial_configs(
    config: Config, *, names: Mapping[str, str] | None = None
) -> tuple[TrialConfig, ...]:
    """Return all trials with their configs, in the order of running; repetitions share theirs. A
    search has those at the ends of its ranges, between which all others are. A config without an
    experiment has one.

    `names` maps dotted keys to what the user calls them. Raises ConfigError that lists the trials
    that are refused.
    """
    if config.experiment is None:
        return (TrialConfig(Trial(1, {}), config),)
    template = _template(config, config.experiment.keys)
    made: dict[str, Config] = {}
    refused: dict[str, str] = {}
    trials = _trials(config.experiment, config.random_seed)
    found = []
    for trial in trials:
        name = repr(trial.parameters)
        if name not in made and name not in refused:
            try:
                own = _not_given(config.experiment, trial.parameters)
                one = _with(template, own, type(config), names)
                made[name] = _as_asked(one, config.experiment)
            except ConfigError as error:
                refused[name] = str(error)
        if name in made:
            found.append(TrialConfig(trial, made[name]))
    refuse_trials(list(refused.values()), len(made) + len(refused))
    return tuple(found)


def refuse_trials(errors: Sequence[str], number: int) -> None:
    """Raise ConfigError if there are errors of trials, of so many that are different."""
    if len(errors) == 1:
        raise ConfigError(errors[0])
    if errors:
        lines = list(errors[:SHOWN])
        if len(errors) > SHOWN:
            lines.append(f"… and {len(errors) - SHOWN:,} more")
        title = f"{len(errors):,} of {number:,} different trials are refused"
        raise ConfigError("\n  ".join([title, *lines]))


def trial_name(parameters: Mapping[str, Any]) -> str:
    """Return what messages call a trial."""
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


def _not_given(experiment: Experiment | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters whose values the template does not have already."""
    given = experiment.part.given if experiment is not None and experiment.part else ()
    return {key: value for key, value in parameters.items() if key not in given}


def _template(config: Config, keys: Iterable[str]) -> dict[str, Any]:
    """Return the config without its experiment. Only the parts with these keys are as a user writes
    them; the others are models, which need no other check."""
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


def _as_asked(config: Config, experiment: Experiment | None) -> Config:
    """Return a trial's config with what a search or a scenario needs of it. Raises ConfigError."""
    if experiment is None or not isinstance(config, BenchmarkConfig):
        return config
    if experiment.scenario is not None:
        from aiperf_svc.core.experiments.scenarios import Scenario, scenario_load

        load = scenario_load(Scenario(experiment.scenario), config.load)
        changed: dict[str, Any] = {"load": load}
        if load.samples_per_query > 1:  # One worker sends them together.
            changed["workers"] = config.workers.model_copy(update={"min": 1, "max": 1})
        config = config.model_copy(update=changed)
    if experiment.search is not None:
        # What it knows of metrics takes long to import, and few experiments search.
        from aiperf_svc.core.experiments.criteria import searched_slo

        try:
            slo = searched_slo(experiment.search, config.slo)
        except ValueError as error:
            key = "maximize" if experiment.search.maximize is not None else "holds"
            raise ConfigError(f"experiment.search.{key}: {error}") from error
        config = config.model_copy(update={"slo": slo})
    return config
