"""Decides from a config and the facts about a machine which processes or pods will run. Pure, so
the decision can be reviewed as a diff.

`plan()` decides everything that depends on the size of the load. The local launcher and the Pulumi
program only translate the result into processes or pods.
"""

import math
from typing import Literal

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import RANK_POD, Deployment
from aiperf_svc.config.load import Load
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.protocol.services import Service

SINGLETONS = (
    Service.SYSTEM_CONTROLLER,
    Service.DATASET_MANAGER,
    Service.TIMING_MANAGER,
    Service.WORKER_MANAGER,
    Service.RECORDS_MANAGER,
)

CAPPED_SLOTS_PER_WORKER = 250
"""Minimum slots of a worker under an open-loop cap or a limit on prefill. With fewer, a request
waits in one worker while another has a free slot (pooling loss of many small queues)."""
LOCAL_USERS_PER_WORKER = 50
"""Users of a closed loop per worker in a local run, as long as there are cores."""
LOCAL_CONNECTIONS_PER_WORKER = 15_000
"""Connections of one worker in a local run, where the fd limit and the cores set the number of
workers, not `connections_per_worker`."""
MAX_CONNECTIONS_PER_WORKER = 15_000
"""Maximum connections of a worker whose size depends on the load."""
RESERVED_FDS = 512
"""File descriptors of a worker that are not connections: sockets of the bus, logs, libraries."""
PROXY_CONCURRENCY_LIMIT = 5_000
"""Maximum concurrent streams through the proxy. At 20 chunks of 230 bytes a second each, 5,000
streams are 23 MB/s of the 350 MB/s that one thread forwards under CURVE."""


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about the environment of the run."""

    where: Literal["local", "cluster"]
    cores: float = 2.0
    """Cores usable by this run, by cgroup quota and affinity, not the node's count."""
    fd_limit: int = 1_048_576
    """Limit of file descriptors of one process."""
    memory_bytes: int = 0
    worker_requests_per_s: float = 5_000.0
    """Open-loop rate of one worker; `aiperf-svc calibrate` measures it."""
    worker_chunks_per_s: float = 50_000.0
    """Chunks of paced streams that one core reads: each wakes the worker and costs 20 µs of CPU."""
    ceiling_requests_per_s: float = 0.0
    """Highest rate of all workers of the machine together; 0: never calibrated."""

    @property
    def is_calibrated(self) -> bool:
        """True if the rates were measured here."""
        return self.ceiling_requests_per_s > 0


def share_of(facts: Facts, count: int) -> Facts:
    """Return the resources of each of `count` equal parts of a machine. Raises ConfigError if a
    part is less than a core."""
    if facts.cores < count:
        raise ConfigError(
            f"targets: {count} runs at the same time need {count} cores, and this machine has "
            f"{facts.cores:g}; run them on a cluster, or let one run send to all of them in turn "
            "(endpoint.urls)"
        )
    memory = facts.memory_bytes // count
    return msgspec.structs.replace(facts, cores=facts.cores / count, memory_bytes=memory)


class Group(msgspec.Struct, frozen=True):
    """A group of identical processes or pods."""

    name: str
    services: tuple[Service, ...]
    replicas: int


class Topology(msgspec.Struct, frozen=True, omit_defaults=True):
    """The processes or pods that will run."""

    layout: Literal["per-service", "compact"]
    groups: tuple[Group, ...]
    workers: int
    record_processors: int
    raw_route: Literal["proxy", "direct"]
    workers_per_core: float = 1.0
    """Number of workers that share each core of a machine; 1 if none are shared."""

    @property
    def expected(self) -> dict[Service, int]:
        """Number of instances of each service that must register before the run starts."""
        return {service: g.replicas for g in self.groups for service in g.services}


def plan(config: BenchmarkConfig, facts: Facts) -> Topology:
    """Plan the topology for `config` in an environment described by `facts`.

    Raises ConfigError when the load exceeds the config's limits.
    """
    workers = _worker_count(config, facts)
    raw_route = config.deployment.raw_route
    if raw_route == "auto":
        # On one machine a direct socket costs nothing, while a proxy copies every record in the
        # process that also receives them. On a cluster the proxy saves a port in each pod.
        small = (config.load.concurrency or 0) <= PROXY_CONCURRENCY_LIMIT and workers <= 16
        raw_route = "proxy" if small and facts.where == "cluster" else "direct"
    processors = config.workers.record_processors or max(1, math.ceil(workers / 4))
    group = Group(Service.WORKER.value, (Service.WORKER,), workers)
    found = _topology(config.deployment, facts, group, processors, raw_route)
    if facts.where == "cluster":
        return found
    return msgspec.structs.replace(found, workers_per_core=max(1.0, workers / facts.cores))


def plan_ranks(deployment: Deployment, ranks: int, facts: Facts) -> Topology:
    """Plan the topology of a benchmark that runs a tool on ranks: a worker for each rank, and one
    record processor, which reads the tool's output."""
    # Whole files use the direct route; a proxy would only copy them once more.
    return _topology(deployment, facts, Group(RANK_POD, (Service.WORKER,), ranks), 1, "direct")


def _topology(
    deployment: Deployment,
    facts: Facts,
    workers: Group,
    processors: int,
    raw_route: Literal["proxy", "direct"],
) -> Topology:
    layout = deployment.layout
    if layout == "auto":
        layout = "compact" if facts.where == "local" else "per-service"
    control = [Group(service.value, (service,), 1) for service in SINGLETONS]
    if layout == "compact":
        control = [Group("control", SINGLETONS, 1)]
    processor = Group(Service.RECORD_PROCESSOR.value, (Service.RECORD_PROCESSOR,), processors)
    return Topology(
        layout=layout,
        groups=(*control, processor, workers),
        workers=workers.replicas,
        record_processors=processors,
        raw_route=raw_route,
    )


def max_users(load: Load) -> int | None:
    """Return how many users of a closed loop send anything in any phase, or the maximum requests in
    flight; None: no limit. Users beyond the number of requests never send."""
    if load.concurrency is None or load.is_open_loop:
        return load.concurrency
    phases = [(load.concurrency, load.requests)]
    if (warmup := load.warmup) is not None:
        users = warmup.concurrency or load.concurrency
        phases.append((users, warmup.requests or warmup.conversations))
    # At most the users of the load: a warmup with more users runs in the same processes.
    max_users = max(users if count is None else min(users, count) for users, count in phases)
    return min(load.concurrency, max_users)


def _worker_count(config: BenchmarkConfig, facts: Facts) -> int:
    load, limits = config.load, config.workers
    if facts.where == "cluster":
        facts = msgspec.structs.replace(
            facts,
            worker_requests_per_s=limits.requests_per_core or facts.worker_requests_per_s,
            worker_chunks_per_s=limits.chunks_per_core or facts.worker_chunks_per_s,
        )
    users = max_users(load)
    by_load = facts.where == "cluster" and limits.sizing == "load"
    connections = LOCAL_CONNECTIONS_PER_WORKER
    if facts.where == "cluster":
        connections = MAX_CONNECTIONS_PER_WORKER if by_load else limits.connections_per_worker
    per_worker = min(connections, facts.fd_limit - RESERVED_FDS)
    if per_worker < 1:
        raise ConfigError(
            f"a process may open only {facts.fd_limit} files here; "
            f"raise the limit above {RESERVED_FDS} (ulimit -n)"
        )
    wanted = math.ceil((users or 1) / per_worker)
    if by_load:
        requests = limits.expected_requests or load.peak_rate or 0.0
        chunks = limits.expected_chunks or 0.0
        cores = requests / facts.worker_requests_per_s + chunks / facts.worker_chunks_per_s
        wanted = max(wanted, math.ceil(cores / (1 - limits.reserve)))
    elif load.peak_rate is not None:
        wanted = max(wanted, math.ceil(load.peak_rate / facts.worker_requests_per_s))
        if load.concurrency is not None:
            wanted = min(wanted, max(1, load.concurrency // CAPPED_SLOTS_PER_WORKER))
    elif facts.where == "local":
        # One worker per core, with one core left for the target or the control services.
        spare = max(1, int(facts.cores) - 1)
        wanted = max(wanted, min(spare, math.ceil((users or 1) / LOCAL_USERS_PER_WORKER)))
    slots = load.prefill_concurrency
    if slots is not None:
        wanted = min(wanted, max(1, slots // CAPPED_SLOTS_PER_WORKER))
        if limits.min > slots:
            raise ConfigError(
                f"workers.min {limits.min} is above load.prefill_concurrency {slots}: a worker "
                "without a slot could send nothing"
            )
    count = max(limits.min, min(wanted, users or wanted))
    if limits.max is not None:
        count = min(count, limits.max)
    if users is not None and users > count * (facts.fd_limit - RESERVED_FDS):
        raise ConfigError(
            f"load.concurrency {users:,} needs more than workers.max {count} processes "
            f"of {facts.fd_limit:,} file descriptors; raise workers.max to "
            f"{math.ceil(users / (facts.fd_limit - RESERVED_FDS))} or the limit"
        )
    return count


def beyond_ceiling(config: BenchmarkConfig, facts: Facts, topology: Topology) -> list[str]:
    """Return warnings for the user before the run; empty if the load is below the ceiling or the
    machine is not calibrated.

    This is a warning, not an error: the ceiling was measured with the server on the same cores,
    while a remote server leaves them to the client. The verdict decides.
    """
    rate, shapes = config.load.peak_rate, ("stages", "rate_series", "bursts", "user_centric")
    keys = (name for name in shapes if getattr(config.load, name) is not None)
    key = f"load.{next(keys, 'request_rate')}"
    if rate is None or not facts.is_calibrated:
        return []
    needed = math.ceil(rate / facts.worker_requests_per_s)
    if rate > facts.ceiling_requests_per_s:
        machines = math.ceil(rate / facts.ceiling_requests_per_s)
        return [
            f"{key} {rate:,.0f}/s is beyond the {facts.ceiling_requests_per_s:,.0f}/s "
            f"that this machine was calibrated at, its server included; {needed} workers on about "
            f"{machines} such machines would do"
        ]
    if topology.workers < needed:
        return [
            f"{key} {rate:,.0f}/s is more than {topology.workers} workers carry at the "
            f"calibrated {facts.worker_requests_per_s:,.0f}/s each; {needed} would do: raise "
            "workers.max or, where there is one, load.concurrency"
        ]
    return []
