"""From a config of any kind to what will run: processes here, or a stack."""

from ipaddress import IPv4Address
from typing import Any

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.workload import Config, WorkloadConfig
from aiperf_svc.plan.ranks import RANK_DIR, VOLUME_DIR, RankNeeds
from aiperf_svc.plan.stack import StackPlan, plan_stack
from aiperf_svc.plan.topology import Facts, Topology, plan, plan_ranks
from aiperf_svc.workloads.base import Rank, Role, default_image
from aiperf_svc.workloads.registry import workload_of


def plan_any(config: Config, facts: Facts) -> Topology:
    """Plan the topology for `config` at a place described by `facts`. Raises ConfigError."""
    if isinstance(config, BenchmarkConfig):
        return plan(config, facts)
    return plan_ranks(config.deployment, sum(role.count for role in roles_of(config)), facts)


def plan_any_stack(
    config: Config,
    *,
    stack: str,
    version: str,
    generation: int = 1,
    image: str = "",
    workload_image: str = "",
) -> StackPlan:
    """Plan a stack of any kind.

    `image` and `workload_image` replace those in the config. Other arguments and errors are those
    of `plan.stack.plan_stack`.
    """
    needs = None
    if not isinstance(config, BenchmarkConfig):
        needs = needs_of(config, version=version, image=workload_image)
    return plan_stack(
        config, stack=stack, version=version, generation=generation, image=image, needs=needs
    )


def needs_of(config: WorkloadConfig[Any], *, version: str, image: str = "") -> RankNeeds:
    """What a workload needs of a stack. `image` replaces the one in the config."""
    workload, spec = workload_of(config), config.workload
    return RankNeeds(
        count=sum(role.count for role in roles_of(config)),
        image=image or spec.image or default_image(spec.kind, version),
        capabilities=workload.needs_privilege(config),
        steps_ns=_steps_ns(config),
    )


_FIRST_ADDRESS = IPv4Address("192.0.2.0")
"""Of the ranks before they are there: a range for documentation (RFC 5737)."""


def _steps_ns(config: WorkloadConfig[Any]) -> int:
    """Longest time of all steps. Their names and timeouts do not depend on where the ranks are."""
    names = [role.name for role in roles_of(config) for _ in range(role.count)]
    ranks = [
        Rank(
            number=number,
            role=role,
            address=str(_FIRST_ADDRESS + number),
            node=f"node-{number}",
            work=f"{RANK_DIR}/work",
            volume=VOLUME_DIR,
            agent=f"{RANK_DIR}/rank_agent.sh",
        )
        for number, role in enumerate(names)
    ]
    steps = workload_of(config).steps(config, ranks)
    attempts = 1 + config.workload.retries
    return sum(
        attempts * step.timeout_ns * (config.repetitions if step.is_measured else 1)
        for step in steps
    )


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
