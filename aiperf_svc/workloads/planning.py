"""From a config of any kind to what will run."""

from typing import Any

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.workload import Config, WorkloadConfig
from aiperf_svc.plan.topology import Facts, Topology, plan, plan_ranks
from aiperf_svc.workloads.base import Role
from aiperf_svc.workloads.registry import workload_of


def plan_any(config: Config, facts: Facts) -> Topology:
    """Plan the topology for `config` at a place described by `facts`. Raises ConfigError."""
    if isinstance(config, BenchmarkConfig):
        return plan(config, facts)
    return plan_ranks(config.deployment, sum(role.count for role in roles_of(config)), facts)


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
