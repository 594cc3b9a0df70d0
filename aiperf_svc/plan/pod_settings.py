"""Resources and placement of each pod of the services: the config's keys, else defaults."""

import math

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.placement import Placement, Pod
from aiperf_svc.config.workload import Config
from aiperf_svc.plan.pods import Requests, Volume
from aiperf_svc.plan.topology import Topology

LARGE_CONNECTION_BYTES = 192 * 2**10
"""Memory of one connection in a worker that streams 500 tokens: 135 KiB measured, with reserve."""
WORKER_BASE_BYTES = 256 * 2**20
_MI = 2**20
SCRATCH_BYTES = 1024 * _MI
"""Size limit of folders in which a pod stores little. It reserves nothing, and stops a pod that
writes too much."""
LOG_BYTES = 256 * _MI
"""Limit of a pod's log, which counts as its storage: the kubelet keeps 50 MiB per container."""
STORAGE_SHARE = 10
"""A pod requests its storage limit divided by this: a run seldom writes more, and a node has disk
for many pods."""
_DEFAULTS: dict[str, tuple[int, int]] = {
    "control": (2000, 3072 * _MI),
    "system-controller": (500, 256 * _MI),
    "dataset-manager": (250, 512 * _MI),
    "timing-manager": (500, 256 * _MI),
    "worker-manager": (250, 256 * _MI),
    "records-manager": (1000, 2048 * _MI),
    "record-processor": (1000, 1024 * _MI),
    "worker": (1000, 512 * _MI),
    "deadline": (10, 64 * _MI),
    "rank": (1000, 1024 * _MI),
    "courier": (50, 192 * _MI),
    "collector": (200, 512 * _MI),
    "readiness": (10, 64 * _MI),
}
"""Millicores and bytes of each pod unless the config sets them. A worker fills one core at
40,000 requests/s; the records manager's memory holds the columns of one million records twice."""
BESIDE_RANKS_CPU: dict[str, int] = {
    "control": 500,
    "system-controller": 100,
    "dataset-manager": 100,
    "timing-manager": 100,
    "worker-manager": 50,
    "records-manager": 100,
    "record-processor": 250,
}
"""Millicores of the services of a workload on ranks. They pass on a few messages a second and read
output after its step has ended. So a small node has room for the ranks."""


def in_pods(deployment: Deployment) -> Deployment:
    """Return the deployment for services in pods. Pods start at different times, since each waits
    for its image and a node, so registration may take as long as a pod's start."""
    longest_start = max(deployment.registration_timeout, deployment.ready_timeout)
    return deployment.model_copy(update={"registration_timeout": longest_start})


def download_bytes(config: BenchmarkConfig) -> int:
    """Return the disk space of a download, for one of two folders. It holds the download while it
    arrives and when it is complete."""
    return 2 * config.dataset.max_download if config.dataset.public else 0


def worker_bytes(config: BenchmarkConfig, topology: Topology) -> int:
    """Return the memory of each worker, which grows with its number of connections."""
    users = math.ceil((config.load.concurrency or 0) / topology.workers)
    wanted = WORKER_BASE_BYTES + users * LARGE_CONNECTION_BYTES
    return max(_DEFAULTS["worker"][1], math.ceil(wanted / (64 * _MI)) * 64 * _MI)


def requests_of(
    config: Config, name: str, *, cpu_millis: int | None = None, memory_bytes: int | None = None
) -> Requests:
    """Return the requests of a pod by its name, without its disk. `cpu_millis` and `memory_bytes`
    replace the defaults."""
    cpu, memory = _DEFAULTS[name]
    own = own_settings(config, name)
    return Requests(
        own.cpu or cpu_millis or cpu, own.memory or memory_bytes or memory, own.cpu_limit
    )


def with_storage(requests: Requests, volumes: tuple[Volume, ...]) -> Requests:
    """Return the same requests with the disk limits of the folders and the log."""
    limit = LOG_BYTES + sum(each.size_bytes for each in volumes if each.kind == "scratch")
    requested = math.ceil(limit / STORAGE_SHARE / _MI) * _MI
    return msgspec.structs.replace(requests, storage_bytes=requested, storage_limit_bytes=limit)


def placement_of(config: Config, name: str) -> Placement:
    """Return the placement of a pod: its own keys, else those of all pods."""
    return own_settings(config, name).placement.overriding(config.deployment.placement)


_NO_SETTINGS = Pod()


def own_settings(config: Config, name: str) -> Pod:
    """Return the keys of `deployment.pods` for a pod; the defaults if it has none."""
    return config.deployment.pods.get(name, _NO_SETTINGS)
