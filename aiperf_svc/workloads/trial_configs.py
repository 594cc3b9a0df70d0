"""The config of a trial, from that of its experiment."""

from collections.abc import Mapping
from typing import Any

from aiperf_svc.config.load_config import parse_as
from aiperf_svc.config.parameters import with_parameters
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.trials import describe


def trial_config(config: Config, parameters: Mapping[str, Any]) -> Config:
    """Return the config of the trial with these parameters, which has no `experiment`. Raises
    ConfigError that names them."""
    written = config.model_dump(mode="json", exclude={"experiment"})
    changed = with_parameters(written, parameters, type(config))
    return parse_as(type(config), changed, f"trial {describe(parameters)}")
