"""The longest times of a stack's start and load, and what depends on them: the minimum TTL, and how
long the drain of a node waits."""

import math
from collections.abc import Sequence

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import RUN_LABEL, Identity


class DisruptionBudget(msgspec.Struct, frozen=True):
    """Budget that keeps the drain of a node waiting while the run needs its pods."""

    name: str
    """Name that contains the run's id. Each run has its own budget, created when the run
    starts."""
    hold: int | None
    """Time in ns from its creation until its deletion; None: it stays until the stack is
    gone."""
    leaves_out: tuple[str, ...] = ()
    """Components whose pods may be evicted, because the run's own events evict them."""


class LongestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Longest times of a stack, in ns."""

    start: int
    """Until every pod of the stack is ready: first the target's, then the services'."""
    load: int
    """Time of the load, or of the steps on ranks, as far as the config limits it."""
    is_bounded: bool = True
    """Whether the config limits the load. A number of requests does not."""
    start_keys: str = "deployment.ready_timeout, deployment.target.ready_timeout"
    """Keys of the config that limit the start."""
    what: str = "load takes"
    """What takes the time `load`, as part of a sentence."""


def load_times(config: BenchmarkConfig) -> LongestTimes:
    """Return the longest times of a benchmark of an inference server."""
    load, warmup, target = config.load, config.load.warmup, config.deployment.target
    grace_ns = config.endpoint.grace_ns
    priming_ns = load.agentic.warmup_grace if load.agentic is not None else 0
    load_ns = load.end or load.longest_schedule or load.min_duration or 0
    needed = priming_ns + load_ns + grace_ns(load.grace_period)
    return LongestTimes(
        start=config.deployment.ready_timeout
        + (target.ready_timeout if target.kind != "none" else 0)
        + config.endpoint.wait_for_server,
        load=needed + ((warmup.duration or 0) + grace_ns(warmup.grace_period) if warmup else 0),
        is_bounded=load.end is not None and (warmup is None or warmup.duration is not None),
    )


def with_uptime(times: LongestTimes, config: BenchmarkConfig) -> LongestTimes:
    """Return the longest times of a visit whose first load begins at a given uptime of the target,
    for which its services may have to wait."""
    blocks = config.experiment.blocks if config.experiment is not None else None
    if blocks is None or blocks.uptime is None:
        return times
    begin = config.deployment.target.ready_timeout + blocks.uptime
    return msgspec.structs.replace(
        times,
        start=max(times.start, begin),
        start_keys=f"{times.start_keys}, experiment.blocks.uptime",
    )


def step_times(deployment: Deployment, steps_ns: int) -> LongestTimes:
    """Return the longest times of a benchmark whose steps on ranks take `steps_ns`."""
    return LongestTimes(
        start=deployment.ready_timeout,
        load=steps_ns,
        start_keys="deployment.ready_timeout",
        what="steps (workload.timeout, workload.retries, repetitions) take",
    )


def sequential_times(times: Sequence[LongestTimes]) -> LongestTimes:
    """Return the longest times of a stack that starts separately for each of these."""
    if len(times) == 1:
        return times[0]
    return LongestTimes(
        start=sum(each.start for each in times),
        load=sum(each.load for each in times),
        is_bounded=all(each.is_bounded for each in times),
        start_keys=times[0].start_keys,
        what=f"trials of {len(times)} shapes take",
    )


def check_ttl(deployment: Deployment, times: LongestTimes) -> None:
    """Raise ConfigError if the stack would delete itself before the end of its load."""
    ttl, start, load = deployment.ttl, times.start, times.load
    if ttl < start + load:
        raise ConfigError(
            f"deployment.ttl is {format_duration(ttl)}; the pods may take {format_duration(start)} "
            f"to get ready ({times.start_keys}) and the {times.what} up to "
            f"{format_duration(load)}: the stack would delete itself before it has results; "
            f"expected at least {format_duration(start + load)}"
        )


def plan_budget(
    deployment: Deployment, times: LongestTimes, identity: Identity
) -> DisruptionBudget | None:
    """Return the disruption budget of a stack with these times, which include all shapes of an
    experiment; None if drains do not wait."""
    if not deployment.hold_drains:
        return None
    queued = deployment.longest_life - deployment.ttl
    longest = queued + times.start + times.load if times.is_bounded else None
    cap = deployment.max_drain_hold
    hold = min((each for each in (longest, cap) if each is not None), default=None)
    return DisruptionBudget(identity.name(f"benchmark-{identity.labels()[RUN_LABEL][:8]}"), hold)


def seconds(duration_ns: int) -> int:
    """Return whole seconds, rounded up, as required by timeouts in Kubernetes."""
    return math.ceil(duration_ns / SECOND_NS)
