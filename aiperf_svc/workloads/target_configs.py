"""The configs of several targets that are measured at the same time."""

from typing import NamedTuple

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.config.workload import Config


class TargetConfig(NamedTuple):
    """A target and the config of its run."""

    name: str
    config: BenchmarkConfig


def target_configs(config: Config) -> tuple[TargetConfig, ...]:
    """Return the config of each target; none if the config has no `targets`. Raises ConfigError
    that names the target."""
    if not isinstance(config, BenchmarkConfig):
        return ()
    found = []
    for target in config.targets:
        data = config.model_dump(mode="json", by_alias=True, exclude={"targets"})
        data["endpoint"] |= target.endpoint
        found.append(TargetConfig(target.name, parse_config(data, f"target {target.name}")))
    return tuple(found)
