"""The ranks of a benchmark of a tool, and what each of them does."""

from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.registry import workload_of


def role_names(config: WorkloadConfig[Any]) -> tuple[str, ...]:
    """The role of each rank: those of the workload, or with `pairs: all` as many as are asked
    for."""
    ranks = config.deployment.ranks
    if ranks.pairs == "all":
        return ("rank",) * (ranks.count or len(ranks.nodes))
    roles = workload_of(config).roles(config.workload)
    return tuple(role.name for role in roles for _ in range(role.count))
