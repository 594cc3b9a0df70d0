"""`config.yaml`: the resolved config, which can be run again as it is."""

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.yaml_files import yaml_text


def render(config: BenchmarkConfig) -> str:
    """Render every key with its value, including defaults, with durations and sizes in exact human
    units."""
    return yaml_text(config.model_dump(mode="json"))
