"""Configs, ranks and recorded output of benchmarks of tools."""

from pathlib import Path
from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.steps import Rank

RECORDED = Path(__file__).parents[1] / "unit/workloads/recorded"


def tool_config(kind: str, *, on: Any = None, **spec: Any) -> WorkloadConfig[Any]:
    """Return the config of a kind with the given keys of its spec, and of `deployment.ranks`.
    Raises ConfigError."""
    data = {"workload": {"kind": kind, **spec}, "deployment": {"ranks": on or {}}}
    config = parse_benchmark(data, "")
    assert isinstance(config, WorkloadConfig)
    return config


def make_ranks(count: int = 2, **changes: Any) -> tuple[Rank, ...]:
    """Return so many ranks, each on a node of its own."""
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
    """Return a tool's output, by its path below `recorded`."""
    return (RECORDED / name).read_bytes()
