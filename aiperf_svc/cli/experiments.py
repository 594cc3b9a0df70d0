"""Functions that the commands share about experiments."""

from typing import TYPE_CHECKING

from aiperf_svc.domain.errors import ConfigError

if TYPE_CHECKING:
    from aiperf_svc.config.workload import Config


def refuse_experiment(config: "Config") -> None:
    """Raise ConfigError for a config of several trials, which is planned and not run."""
    if config.experiment is not None:
        raise ConfigError("experiment: trials are planned and not run; see `aiperf-svc preview`")
