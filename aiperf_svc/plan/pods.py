"""The pods of a stack: their commands, resources, permissions and placement.

Pure: `infra/` turns each PodPlan into a Deployment without deciding anything.
"""

import math
from typing import Literal

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.placement import Gpu, Placement, Pod
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.plan.identity import ANCHOR, Identity
from aiperf_svc.plan.lifetime import DisruptionBudget
from aiperf_svc.plan.topology import SINGLETONS, Group, Topology
from aiperf_svc.protocol.messages import Service
from aiperf_svc.protocol.ports import BOUND_BY, Port, key_file, with_peers

CONFIG_DIR = "/etc/aiperf"
CURVE_DIR = "/etc/aiperf-curve"
ARTIFACTS_DIR = "/artifacts"
TARGET_KEY_ENV = "AIPERF_TARGET_API_KEY"
"""Environment variable in which workers find the target's API key."""
TARGET_KEY = "targetApiKey"
"""Key of the target's API key in the stack's configuration and in its Secret."""
UPLOAD_KEYS = {
    "AWS_ACCESS_KEY_ID": "s3AccessKeyId",
    "AWS_SECRET_ACCESS_KEY": "s3SecretAccessKey",
}
"""Environment variables with the keys of an upload to a bucket, and the keys that hold them in the
stack's configuration and in its Secret."""
UPLOAD_TOKEN = {"AWS_SESSION_TOKEN": "s3SessionToken"}
"""Environment variable and key of the session token of temporary keys."""
DEADLINE_KEPT = "/tmp/kept"
"""File that the deadline pod makes when the API server has responded to it."""
TOKEN_KEY = "token"
"""Name of the results API's token in the Secret of the services' keys."""

GRACE_S = 30
"""Seconds between SIGTERM and SIGKILL; the services need 5 s to end in order."""
PORT_RANGE = {"net.ipv4.ip_local_port_range": "1024 65535"}
"""Range of local ports: 64,511 ports to a target instead of 28,231. A `safe` sysctl, allowed under
`restricted`."""
LARGE_CONNECTION_BYTES = 192 * 2**10
"""Memory of one connection in a worker that streams 500 tokens: 135 KiB measured, with reserve."""
WORKER_BASE_BYTES = 256 * 2**20

_MI = 2**20
SCRATCH_BYTES = 1024 * _MI
"""Limit of a folder in which a pod keeps little. It reserves nothing, and stops a pod that writes
too much."""
LOG_BYTES = 256 * _MI
"""Room for a pod's log, which counts as its storage: the kubelet keeps 50 MiB of each container."""
STORAGE_SHARE = 10
"""Divisor of a pod's storage limit for its request: a run seldom writes more, and a node has disk
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
}
"""Millicores and bytes of each pod unless the config says otherwise. A worker fills one core at
40,000 requests/s; the records manager's memory holds the columns of one million records twice."""


class Volume(msgspec.Struct, frozen=True):
    """A volume that is mounted into a pod."""

    name: str
    path: str
    kind: Literal["config", "keys", "scratch", "memory"]
    """`scratch` is an empty folder on the node, `memory` one in its memory."""
    size_bytes: int = 0
    """Limit of a scratch or memory volume; 0: none. A pod that exceeds it is evicted."""
    items: tuple[str, ...] = ()
    """Files of the keys that the pod gets; it gets no others."""


class SecretKey(msgspec.Struct, frozen=True):
    """One value of one of the stack's Secrets. `keys` is made by the stack; `target` and `upload`
    hold the user's values for the target and for the bucket of the results."""

    secret: Literal["keys", "target", "upload"]
    key: str


class Probe(msgspec.Struct, frozen=True):
    """Readiness probe of a pod: HTTP if there is a path, else an open port."""

    port: int
    path: str | None = None


class ImagePlan(msgspec.Struct, frozen=True):
    """A container image and how it is fetched."""

    name: str
    pull_policy: str
    pull_secrets: tuple[str, ...] = ()


class Requests(msgspec.Struct, frozen=True):
    """Resources that a pod requests. The memory is its limit as well."""

    cpu_millis: int
    memory_bytes: int
    cpu_limit_millis: int | None = None
    gpu: Gpu | None = None
    storage_bytes: int = 0
    """Request of the node's disk: scratch volumes, logs and what is written into the root file
    system."""
    storage_limit_bytes: int = 0
    """Limit of the node's disk; 0: no limit and no request."""


class PodPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Pod of one Deployment."""

    name: str
    replicas: int
    image: ImagePlan
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    field_env: dict[str, str] = {}
    """Fields of the pod (downward API) by environment variable."""
    secret_env: dict[str, SecretKey] = {}
    volumes: tuple[Volume, ...] = ()
    ports: dict[str, int] = {}
    """Ports that the pod binds, and those of its Service if it has one."""
    has_service: bool = False
    """True if the pod is reached by a stable name."""
    probe: Probe | None = None
    """Readiness probe; None: the pod is ready as soon as it runs."""
    ready_file: str | None = None
    """File that the pod makes when it has done its work for the first time; only then is it
    ready."""
    requests: Requests
    placement: Placement
    annotations: dict[str, str] = {}
    sysctls: dict[str, str] = {}
    calls_api: bool = False
    """True if the pod gets a ServiceAccount's token."""
    run_as_root: bool = False
    read_only_root: bool = True
    ready_timeout_s: int


def service_pods(
    config: BenchmarkConfig, topology: Topology, identity: Identity, image: ImagePlan
) -> tuple[PodPlan, ...]:
    """Return one pod for each group of the topology."""
    hosts = {
        service.value: identity.name(group.name)
        for group in topology.groups
        for service in group.services
        if service in SINGLETONS and _ports(group, topology)
    }
    env = PROCESS_ENVIRONMENT | {
        "AIPERF_RUN_ID": identity.run_id,
        "AIPERF_CONFIG": f"{CONFIG_DIR}/config.yaml",
        "AIPERF_TOPOLOGY": f"{CONFIG_DIR}/topology.json",
        "AIPERF_BUS": "tcp://*",
        "AIPERF_HOSTS": msgspec.json.encode(hosts).decode(),
        "AIPERF_CURVE_DIR": CURVE_DIR,
        "AIPERF_ARTIFACTS": ARTIFACTS_DIR,
        "AIPERF_LOG_FORMAT": "json",
        "AIPERF_RESULTS_PORT": str(int(Port.RESULTS_API)),
    }
    return tuple(_service_pod(config, topology, group, image, env) for group in topology.groups)


def deadline_pod(
    config: BenchmarkConfig,
    identity: Identity,
    image: ImagePlan,
    *,
    budget: DisruptionBudget | None = None,
) -> PodPlan:
    """Return the pod that deletes the stack when its TTL is over. It also deletes the disruption
    budget when the load must be over. No other pod talks to the API server."""
    is_guest = config.deployment.namespace.mode == "existing"
    volumes = (Volume("tmp", "/tmp", "scratch", 64 * _MI),)
    hold_env: dict[str, str] = {}
    if budget and budget.hold is not None:
        hold_env = {
            "AIPERF_BUDGET": budget.name,
            "AIPERF_BUDGET_SECONDS": str(seconds(budget.hold)),
        }
    return PodPlan(
        name="deadline",
        replicas=1,
        image=image,
        args=("deadline",),
        env={
            "AIPERF_ANCHOR": identity.name(ANCHOR),
            "AIPERF_TTL_SECONDS": str(seconds(config.deployment.ttl)),
            "AIPERF_DEADLINE_DELETES": "anchor" if is_guest else "namespace",
            **hold_env,
            "AIPERF_READY_FILE": DEADLINE_KEPT,
        },
        field_env={"AIPERF_NAMESPACE": "metadata.namespace"},
        volumes=volumes,
        ready_file=DEADLINE_KEPT,
        requests=with_storage(_requests(config, "deadline"), volumes),
        placement=_placement(config, "deadline"),
        annotations=_own(config, "deadline").annotations,
        calls_api=True,
        ready_timeout_s=seconds(config.deployment.ready_timeout),
    )


def _service_pod(
    config: BenchmarkConfig,
    topology: Topology,
    group: Group,
    image: ImagePlan,
    env: dict[str, str],
) -> PodPlan:
    is_worker = Service.WORKER in group.services
    has_results = Service.RECORDS_MANAGER in group.services
    ports = _ports(group, topology)
    placement = _placement(config, group.name)
    secret_env: dict[str, SecretKey] = {}
    if has_results:
        secret_env["AIPERF_API_TOKEN"] = SecretKey("keys", TOKEN_KEY)
        for variable, key in upload_keys(config).items():
            secret_env[variable] = SecretKey("upload", key)
    if is_worker and config.endpoint.api_key_env:
        secret_env[TARGET_KEY_ENV] = SecretKey("target", TARGET_KEY)
    # One of the two folders holds a download both while it arrives and when it is complete.
    scratch = SCRATCH_BYTES + (2 * config.dataset.max_download if config.dataset.public else 0)
    results = config.deployment.results.storage
    volumes = (
        Volume("config", CONFIG_DIR, "config"),
        Volume("curve", CURVE_DIR, "keys", items=_key_files(group)),
        Volume("tmp", "/tmp", "scratch", scratch),
        Volume("artifacts", ARTIFACTS_DIR, "scratch", results if has_results else scratch),
    )
    return PodPlan(
        name=group.name,
        replicas=group.replicas,
        image=image,
        args=("service",),
        env={"AIPERF_SERVICE": ",".join(group.services), **env},
        field_env={"AIPERF_SERVICE_ID": "metadata.name", "AIPERF_ADVERTISE": "status.podIP"},
        secret_env=secret_env,
        volumes=volumes,
        ports=ports,
        has_service=group.services[0] in SINGLETONS and bool(ports),
        probe=_probe(ports),
        requests=with_storage(_requests(config, group.name, topology), volumes),
        placement=placement,
        annotations=_own(config, group.name).annotations,
        # The API refuses network sysctls for pods in the node's own network.
        sysctls=PORT_RANGE if is_worker and not placement.host_network else {},
        ready_timeout_s=seconds(config.deployment.ready_timeout),
    )


def upload_keys(config: BenchmarkConfig) -> dict[str, str]:
    """Return the key of the stack's configuration by environment variable, for an upload to a
    bucket."""
    s3 = config.artifacts.s3
    if s3 is None:
        return {}
    return {**UPLOAD_KEYS, **(UPLOAD_TOKEN if s3.has_session_token else {})}


def _key_files(group: Group) -> tuple[str, ...]:
    """Return the pod's own keys, and the public keys of the services that it communicates with."""
    public = [key_file(service, "public") for service in with_peers(group.services)]
    return tuple(sorted(public + [key_file(service, "secret") for service in group.services]))


def _ports(group: Group, topology: Topology) -> dict[str, int]:
    bound = {port for port, service in BOUND_BY.items() if service in group.services}
    # The dataset manager serves through the controller's proxy; processors only on the direct way.
    if topology.raw_route == "proxy":
        bound.discard(Port.RAW_DIRECT)
    return {port.name.lower().replace("_", "-"): int(port) for port in sorted(bound)}


def _probe(ports: dict[str, int]) -> Probe | None:
    if Port.RESULTS_API in ports.values():
        return Probe(int(Port.RESULTS_API), "/readyz")
    if ports:
        return Probe(max(ports.values()))
    return None


def _requests(config: BenchmarkConfig, name: str, topology: Topology | None = None) -> Requests:
    cpu, memory = _DEFAULTS[name]
    if name == "worker" and topology is not None:
        users = math.ceil((config.load.concurrency or 0) / topology.workers)
        wanted = WORKER_BASE_BYTES + users * LARGE_CONNECTION_BYTES
        memory = max(memory, math.ceil(wanted / (64 * _MI)) * 64 * _MI)
    own = _own(config, name)
    return Requests(own.cpu or cpu, own.memory or memory, own.cpu_limit)


def with_storage(requests: Requests, volumes: tuple[Volume, ...]) -> Requests:
    """Return the same requests with the disk that the folders and the log may take."""
    limit = LOG_BYTES + sum(each.size_bytes for each in volumes if each.kind == "scratch")
    asked = math.ceil(limit / STORAGE_SHARE / _MI) * _MI
    return msgspec.structs.replace(requests, storage_bytes=asked, storage_limit_bytes=limit)


def _placement(config: BenchmarkConfig, name: str) -> Placement:
    return _own(config, name).placement.overriding(config.deployment.placement)


def _own(config: BenchmarkConfig, name: str) -> Pod:
    return config.deployment.pods.get(name, Pod())


def seconds(duration_ns: int) -> int:
    """Return whole seconds, rounded up, as Kubernetes' timeouts take them."""
    return math.ceil(duration_ns / SECOND_NS)
