"""Functions that the commands share about experiments."""

from collections.abc import Callable, Mapping

from aiperf_svc.config.load_config import refusal
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.target_configs import target_configs
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.trials import (
    CheckedTrials,
    TrialConfig,
    refuse_trials,
    trial_configs,
    trial_name,
)


def parallel_problems(config: Config) -> list[Problem]:
    """Return what is wrong with running the shapes of an experiment on this machine."""
    experiment = config.experiment
    if experiment is None or experiment.parallel in (1, "auto"):
        return []
    text = (
        f"{experiment.parallel}: measurements at the same time on one machine would disturb each "
        "other; leave it out, or run on a cluster"
    )
    return [Problem("experiment.parallel", text)]


def checked_trials(
    config: Config,
    check: Callable[[Config], list[Problem]],
    *,
    source: str,
    names: Mapping[str, str] | None = None,
) -> CheckedTrials:
    """Check a config, and each different one of its trials and targets, and return the trials.

    `check` returns the problems of one of them. Raises ConfigError with those of the config, or
    with the trials or the target that are refused.
    """
    if problems := check(config):
        raise refusal(problems, source, names=names)
    members, different = _checked_members(config, check, names)
    if targets := target_configs(config):
        different = []
    for target in targets:
        if problems := check(target.config):
            raise refusal(problems, f"target {target.name}", names=names)
        try:
            different += _checked_members(target.config, check, names)[1]
        except ConfigError as error:
            raise ConfigError(f"target {target.name}: {error}") from error
    return CheckedTrials(config, members, tuple(different))


def _checked_members(
    config: Config,
    check: Callable[[Config], list[Problem]],
    names: Mapping[str, str] | None,
) -> tuple[tuple[TrialConfig, ...], list[Config]]:
    """Return the trials of a config, and each different config of theirs. Raises ConfigError with
    the trials that are refused."""
    members = trial_configs(config, names=names)
    found = {id(each.config): each for each in members}
    errors = [
        str(refusal(problems, trial_name(each.trial.parameters), names=names))
        for each in found.values()
        if config.experiment is not None and (problems := check(each.config))
    ]
    refuse_trials(errors, len(found))
    return members, [each.config for each in found.values()]
