"""`config.yaml`: the resolved config, which can be run again as it is."""

import yaml

from aiperf_svc.config.benchmark import BenchmarkConfig


def render(config: BenchmarkConfig) -> str:
    """Render every key with its value, including defaults, with durations and sizes in exact human
    units."""
    resolved = config.model_dump(mode="json")
    return str(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))
