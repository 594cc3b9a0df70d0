"""The longest times of a stack's start and load, and what depends on them: the least TTL, and how
long a drain of a node waits."""

import msgspec

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import Identity


class DisruptionBudget(msgspec.Struct, frozen=True):
    """Budget that keeps the drain of a node waiting while the run needs its pods."""

    name: str
    """Name that contains the run's id. Each run has a budget of its own, made when that run
    starts."""
    hold: int | None
    """Time in ns after its creation at which it is deleted; None: it stays until the stack is
    gone."""


def load_time(config: BenchmarkConfig) -> int:
    """Return the longest time of the load in ns, as far as the config bounds it. A number of
    requests has no bound."""
    load, warmup = config.load, config.load.warmup
    needed = (load.duration or 0) + load.grace_period
    return needed + ((warmup.duration or 0) + warmup.grace_period if warmup else 0)


def start_time(config: BenchmarkConfig) -> int:
    """Return the longest time in ns until every pod of the stack is ready: first the target's, then
    the services'."""
    deployment = config.deployment
    has_target = deployment.target.kind != "none"
    return deployment.ready_timeout + (deployment.target.ready_timeout if has_target else 0)


def check_ttl(config: BenchmarkConfig) -> None:
    """Raise ConfigError if the stack would delete itself before its load is over."""
    ttl, start, load = config.deployment.ttl, start_time(config), load_time(config)
    if ttl < start + load:
        raise ConfigError(
            f"deployment.ttl is {format_duration(ttl)}; the pods may take {format_duration(start)} "
            f"to get ready (deployment.ready_timeout, deployment.target.ready_timeout) and the "
            f"load takes up to {format_duration(load)}: the stack would delete itself before it "
            f"has results; expected at least {format_duration(start + load)}"
        )


def plan_budget(config: BenchmarkConfig, identity: Identity) -> DisruptionBudget | None:
    """Return the disruption budget of the run; None if drains do not wait."""
    if not config.deployment.hold_drains:
        return None
    load, warmup = config.load, config.load.warmup
    is_bounded = load.duration is not None and (warmup is None or warmup.duration is not None)
    hold = start_time(config) + load_time(config) if is_bounded else None
    return DisruptionBudget(identity.name(f"benchmark-{identity.run_id[:8]}"), hold)
