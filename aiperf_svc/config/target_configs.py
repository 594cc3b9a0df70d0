"""The configs of several targets that are measured at the same time."""

from typing import NamedTuple

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.config.parameters import key_path, merged, value_at
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError


class TargetConfig(NamedTuple):
    """A target and the config of its run."""

    name: str
    config: BenchmarkConfig


def target_configs(config: Config) -> tuple[TargetConfig, ...]:
    """Return the config of each target; none if the config has no `targets`. Raises ConfigError
    that names the target."""
    found = []
    for target in config.targets:
        data = config.model_dump(mode="json", by_alias=True, exclude={"targets"})
        own = {"endpoint": target.endpoint, "deployment": target.deployment}
        for key in config.experiment.keys if config.experiment is not None else ():
            if value_at(own, key_path(key, BenchmarkConfig)) is not None:
                raise ConfigError(f"target {target.name} sets {key}, which the experiment varies")
        data = merged(data, own)
        found.append(TargetConfig(target.name, parse_config(data, f"target {target.name}")))
    return tuple(found)


def chosen_target(config: Config, name: str) -> Config:
    """Return the config of the target that a stack's file chooses for `pulumi up`, the first one
    without a name; the config itself if it has no `targets`. Raises ConfigError."""
    found = target_configs(config)
    if not found:
        if name:
            raise ConfigError(f"aiperf:target: {name!r}: this stack has no `targets`")
        return config
    chosen = next((each.config for each in found if name in ("", each.name)), None)
    if chosen is None:
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"aiperf:target: {name!r}: expected one of {names}")
    return chosen
