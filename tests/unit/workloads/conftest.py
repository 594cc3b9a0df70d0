"""What the tests of all kinds use: ranks, configs and recorded output."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.steps import Rank

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def ranks() -> Callable[[int], tuple[Rank, ...]]:
    """So many ranks, each on a node of its own."""
    return lambda count: tuple(
        Rank(
            number=n,
            role="rank",
            address=f"10.0.0.{n}",
            node=f"node-{n}",
            work="/work",
            volume="/volume",
            agent="/agent",
        )
        for n in range(count)
    )


@pytest.fixture
def config() -> Callable[..., WorkloadConfig[Any]]:
    """The config of a kind with the given keys of its spec, and of `deployment.ranks`. Raises
    ConfigError."""

    def parsed(kind: str, *, on: dict[str, Any] | None = None, **spec: Any) -> WorkloadConfig[Any]:
        data = {"workload": {"kind": kind, **spec}, "deployment": {"ranks": on or {}}}
        result = parse_benchmark(data, "")
        assert isinstance(result, WorkloadConfig)
        return result

    return parsed


@pytest.fixture
def recorded() -> Callable[[str], bytes]:
    """A tool's output, by its path below `recorded`."""
    return lambda name: (RECORDED / name).read_bytes()
