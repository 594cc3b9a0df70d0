"""The smallest benchmark of an inference server, with optional changes."""

from collections.abc import Mapping
from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig


def small_benchmark(
    url: str = "http://h",
    /,
    *,
    endpoint: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Return a benchmark with one request or another load, and these keys and parts."""
    return {
        "endpoint": {"url": url, "model": "m", **(endpoint or {})},
        "load": load or {"concurrency": 1, "requests": 1},
        **parts,
    }


def small_jobs(**experiment: Any) -> dict[str, Any]:
    """Return an experiment on mock servers that runs in Jobs."""
    return small_benchmark(
        "http://target",
        load={"concurrency": 1, "duration": "1s"},
        experiment={"fan_out": "jobs", **experiment},
        deployment={"target": {"kind": "mock"}},
    )


def small_config(url: str = "http://h", /, **parts: Any) -> BenchmarkConfig:
    """Return the smallest benchmark as a config."""
    return BenchmarkConfig.model_validate(small_benchmark(url, **parts))
