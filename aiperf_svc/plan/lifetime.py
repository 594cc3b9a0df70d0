"""How long the start and the load of a stack may take, and what depends on that: the least time to
live, and how long a drain of a node waits."""

import msgspec

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import Identity


class DisruptionBudget(msgspec.Struct, frozen=True):
    """Keeps the drain of a node waiting while the run needs its pods."""

    name: str
    """Contains the run's id: each run has a budget of its own, whose creation is the beginning of
    that run's start."""
    hold: int | None
    """Time in ns after its creation when it is deleted; None: it stays until the stack is gone."""


def load_time(config: BenchmarkConfig) -> int:
    """Longest time of the load as far as the config bounds it, in ns: a number of requests takes
    as long as it takes."""
    load, warmup = config.load, config.load.warmup
    needed = (load.duration or 0) + load.grace_period
    return needed + ((warmup.duration or 0) + warmup.grace_period if warmup else 0)


def start_time(config: BenchmarkConfig) -> int:
    """Longest time in ns until every pod of the stack is ready: the target's first, then the
    services'."""
    deployment = config.deployment
    has_target = deployment.target.kind != "none"
    return deployment.ready_timeout + (deployment.target.ready_timeout if has_target else 0)


def check_ttl(config: BenchmarkConfig) -> None:
    """Raises ConfigError when the stack would delete itself before its load is over."""
    ttl, start, load = config.deployment.ttl, start_time(config), load_time(config)
    if ttl < start + load:
        raise ConfigError(
            f"deployment.ttl is {format_duration(ttl)}; the pods may take {format_duration(start)} "
            f"to get ready (deployment.ready_timeout, deployment.target.ready_timeout) and the "
            f"load takes up to {format_duration(load)}: the stack would delete itself before it "
            f"has results; expected at least {format_duration(start + load)}"
        )


def plan_budget(config: BenchmarkConfig, identity: Identity) -> DisruptionBudget | None:
    """The budget of the run; None when drains are not to wait."""
    if not config.deployment.hold_drains:
        return None
    load, warmup = config.load, config.load.warmup
    is_bounded = load.duration is not None and (warmup is None or warmup.duration is not None)
    hold = start_time(config) + load_time(config) if is_bounded else None
    return DisruptionBudget(identity.name(f"benchmark-{identity.run_id[:8]}"), hold)
