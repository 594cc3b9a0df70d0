"""The pods of a stack: what runs in them, what they ask for, what they may do, where they run.

Pure: `infra/` turns each PodPlan into a Deployment without deciding anything.
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.placement import Gpu, Placement, Pod
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.topology import SINGLETONS, Group, Topology
from aiperf_svc.protocol.messages import Service
from aiperf_svc.protocol.ports import BOUND_BY, Port

CONFIG_DIR = "/etc/aiperf"
CURVE_DIR = "/etc/aiperf-curve"
ARTIFACTS_DIR = "/artifacts"
TARGET_KEY_ENV = "AIPERF_TARGET_API_KEY"
"""Where workers find the target's API key."""

GRACE_S = 30
"""Between SIGTERM and SIGKILL; the services need 5 s to end in order."""
PORT_RANGE = {"net.ipv4.ip_local_port_range": "1024 65535"}
"""64,511 local ports to a target instead of 28,231. A `safe` sysctl, allowed under `restricted`."""
LARGE_CONNECTION_BYTES = 192 * 2**10
"""Memory of one connection in a worker that streams 500 tokens: 135 KiB measured, with reserve."""
WORKER_BASE_BYTES = 256 * 2**20

_MI = 2**20
_REQUESTS: dict[str, tuple[int, int]] = {
    "control": (2000, 3072 * _MI),
    "system-controller": (500, 256 * _MI),
    "dataset-manager": (250, 512 * _MI),
    "timing-manager": (500, 256 * _MI),
    "worker-manager": (250, 256 * _MI),
    "records-manager": (1000, 2048 * _MI),
    "record-processor": (1000, 1024 * _MI),
    "worker": (1000, 512 * _MI),
    "deadline": (10, 64 * _MI),
}
"""Millicores and bytes of each pod unless the config says otherwise. A worker fills one core at
40,000 requests/s; the records manager's memory holds the columns of one million records twice."""


class Volume(msgspec.Struct, frozen=True):
    """Something mounted into a pod."""

    name: str
    path: str
    kind: Literal["config", "keys", "scratch", "memory"]
    """`scratch` is an empty folder on the node, `memory` one in its memory."""
    size_bytes: int = 0
    """Limit of a scratch or memory volume; 0: none."""


class SecretKey(msgspec.Struct, frozen=True):
    """One value of one of the stack's Secrets."""

    secret: Literal["keys", "target"]
    key: str


class Probe(msgspec.Struct, frozen=True):
    """How the kubelet sees that a pod is ready: HTTP when there is a path, else an open port."""

    port: int
    path: str | None
    timeout_s: int
    """Longest time until it first succeeds."""


class PodPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One Deployment's pod."""

    name: str
    replicas: int
    image: str
    pull_policy: str
    pull_secrets: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    field_env: dict[str, str] = {}
    """Environment variable to a field of the pod (downward API)."""
    secret_env: dict[str, SecretKey] = {}
    volumes: tuple[Volume, ...] = ()
    ports: dict[str, int] = {}
    """Bound by the pod; those of the Service as well, if it has one."""
    has_service: bool = False
    """Reached by a stable name."""
    probe: Probe | None = None
    cpu_millis: int
    memory_bytes: int
    cpu_limit_millis: int | None = None
    gpu: Gpu | None = None
    placement: Placement
    annotations: dict[str, str] = {}
    sysctls: dict[str, str] = {}
    calls_api: bool = False
    """Gets a ServiceAccount's token."""
    run_as_root: bool = False
    read_only_root: bool = True
    ready_timeout_s: int


def service_pods(
    config: BenchmarkConfig, topology: Topology, identity: Identity, image: str
) -> tuple[PodPlan, ...]:
    """One pod for each group of the topology."""
    hosts = {
        service.value: identity.name(group.name)
        for group in topology.groups
        for service in group.services
        if service in SINGLETONS
    }
    return tuple(
        _service_pod(config, topology, group, identity, image, hosts) for group in topology.groups
    )


def deadline_pod(config: BenchmarkConfig, identity: Identity, image: str) -> PodPlan:
    """The pod that deletes the stack when its time is over. It alone talks to the API server."""
    mode = config.deployment.namespace.mode
    return PodPlan(
        name="deadline",
        replicas=1,
        args=("deadline",),
        env={
            "AIPERF_ANCHOR": identity.name("anchor"),
            "AIPERF_TTL_SECONDS": str(math.ceil(config.deployment.ttl / SECOND_NS)),
            "AIPERF_DEADLINE_DELETES": "anchor" if mode == "existing" else "namespace",
        },
        field_env={"AIPERF_NAMESPACE": "metadata.namespace"},
        calls_api=True,
        volumes=(Volume("tmp", "/tmp", "scratch"),),
        **_common(config, "deadline", image),
    )


def _service_pod(
    config: BenchmarkConfig,
    topology: Topology,
    group: Group,
    identity: Identity,
    image: str,
    hosts: Mapping[str, str],
) -> PodPlan:
    is_worker = Service.WORKER in group.services
    has_results = Service.RECORDS_MANAGER in group.services
    is_single = group.services[0] in SINGLETONS
    ports = _ports(group, topology)
    secret_env: dict[str, SecretKey] = {}
    if has_results:
        secret_env["AIPERF_API_TOKEN"] = SecretKey("keys", "token")
    if is_worker and config.endpoint.api_key_env:
        secret_env[TARGET_KEY_ENV] = SecretKey("target", "api-key")
    common = _common(config, group.name, image, connections=_connections(config, topology))
    placement = common["placement"]
    assert isinstance(placement, Placement)
    return PodPlan(
        name=group.name,
        replicas=group.replicas,
        args=("service",),
        env={
            "AIPERF_RUN_ID": identity.run_id,
            "AIPERF_SERVICE": ",".join(group.services),
            "AIPERF_CONFIG": f"{CONFIG_DIR}/config.yaml",
            "AIPERF_TOPOLOGY": f"{CONFIG_DIR}/topology.json",
            "AIPERF_BUS": "tcp://",
            "AIPERF_HOSTS": msgspec.json.encode(hosts).decode(),
            "AIPERF_CURVE_DIR": CURVE_DIR,
            "AIPERF_ARTIFACTS": ARTIFACTS_DIR,
            "AIPERF_LOG_FORMAT": "json",
            "AIPERF_RESULTS_PORT": str(int(Port.RESULTS_API)),
        },
        field_env={
            "AIPERF_SERVICE_ID": "metadata.name",
            "AIPERF_ADVERTISE": "status.podIP",
        },
        secret_env=secret_env,
        volumes=(
            Volume("config", CONFIG_DIR, "config"),
            Volume("curve", CURVE_DIR, "keys"),
            Volume("tmp", "/tmp", "scratch"),
            Volume(
                "artifacts",
                ARTIFACTS_DIR,
                "scratch",
                config.deployment.results.storage if has_results else 0,
            ),
        ),
        ports=ports,
        has_service=is_single and bool(ports),
        probe=_probe(ports, common["ready_timeout_s"]),
        # The API refuses sysctls of the network in the node's own network.
        sysctls=dict(PORT_RANGE) if is_worker and not placement.host_network else {},
        **common,
    )


def _common(
    config: BenchmarkConfig, name: str, image: str, *, connections: int = 0
) -> dict[str, typing.Any]:
    deployment = config.deployment
    own = deployment.pods.get(name, Pod())
    cpu, memory = _REQUESTS[name]
    if name == "worker":
        wanted = WORKER_BASE_BYTES + connections * LARGE_CONNECTION_BYTES
        memory = max(memory, math.ceil(wanted / (64 * _MI)) * 64 * _MI)
    return {
        "image": image,
        "pull_policy": deployment.image.pull_policy,
        "pull_secrets": deployment.image.pull_secrets,
        "cpu_millis": own.cpu or cpu,
        "memory_bytes": own.memory or memory,
        "cpu_limit_millis": own.cpu_limit,
        "placement": own.placement.overriding(deployment.placement),
        "annotations": own.annotations,
        "ready_timeout_s": math.ceil(deployment.ready_timeout / SECOND_NS),
    }
