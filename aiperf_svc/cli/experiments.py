"""Functions that the commands share about experiments."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiperf_svc.config.problems import Problem
    from aiperf_svc.config.workload import Config


def distinct_configs(
    config: "Config",
    check: "Callable[[Config], list[Problem]]",
    *,
    source: str,
    names: Mapping[str, str] | None = None,
) -> "list[Config]":
    """Check a config, and each different one of its trials, and return those of the trials.

    `check` returns the problems of one of them. Raises ConfigError with those of the config, or
    with the trials that are refused.
    """
    from aiperf_svc.config.load_config import refusal
    from aiperf_svc.workloads.trial_configs import refuse_trials, trial_configs, trial_name

    if problems := check(config):
        raise refusal(problems, source, names=names)
    found = {id(each.config): each for each in trial_configs(config, names=names)}
    errors = [
        str(refusal(problems, trial_name(each.trial.parameters), names=names))
        for each in found.values()
        if config.experiment is not None and (problems := check(each.config))
    ]
    refuse_trials(errors, len(found))
    return [each.config for each in found.values()]
