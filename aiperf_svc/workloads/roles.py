"""The ranks of a benchmark of a tool, and what each of them does."""

from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.base import Role
from aiperf_svc.workloads.registry import workload_of


def roles_of(config: WorkloadConfig[Any]) -> tuple[Role, ...]:
    """The ranks of a benchmark: those of the workload, or with `pairs: all` as many as are asked
    for."""
    ranks = config.deployment.ranks
    if ranks.pairs == "all":
        count = ranks.count or len(ranks.nodes)
        return (Role("rank", count),)
    return workload_of(config).roles(config.workload)


def role_of(config: WorkloadConfig[Any], number: int) -> str:
    """Name of the role of a rank."""
    names = [role.name for role in roles_of(config) for _ in range(role.count)]
    return names[number]
