"""Reads a BenchmarkConfig from a file."""

from pathlib import Path

import yaml

from aiperf_svc.config.models import BenchmarkConfig


def load_config(path: Path) -> BenchmarkConfig:
    """The config in a YAML file."""
    return BenchmarkConfig.model_validate(yaml.safe_load(path.read_text()))
