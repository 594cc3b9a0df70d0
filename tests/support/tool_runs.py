"""Configs, ranks and recorded output of tool benchmarks."""

from pathlib import Path
from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.steps import Rank

RECORDED = Path(__file__).parents[1] / "unit/workloads/recorded"


def tool_config(kind: str, *, on: Any = None, **spec: Any) -> WorkloadConfig[Any]:
    """Return a config with these keys of its spec and of the ranks. Raises ConfigError."""
    data = {"workload": {"kind": kind, **spec}, "deployment": {"ranks": on or {}}}
    config = parse_benchmark(data, "")
    assert isinstance(config, WorkloadConfig)
    return config


def make_ranks(count: int = 2, **changes: Any) -> tuple[Rank, ...]:
    """Return ranks that are each on their own node."""
    return tuple(
        Rank(
            **{
                "number": n,
                "role": "rank",
                "address": f"10.0.0.{n}",
                "node": f"node-{n}",
                "work": "/work",
                "volume": "/volume",
                "agent": "/agent",
                **changes,
            }
        )
        for n in range(count)
    )


def recorded(name: str) -> bytes:
    """Return a tool's output by its path in `recorded`."""
    return (RECORDED / name).read_bytes()
