"""The pods of a stack: their commands, resources, permissions and placement.

Pure: `infra/` turns each PodPlan into a Deployment or into StatefulSets without deciding anything.
"""

import functools
import math
import operator
from typing import Literal

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.placement import Gpu, Placement, Pod
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.plan.identity import ANCHOR, RUN_ID, Identity
from aiperf_svc.plan.lifetime import DisruptionBudget
from aiperf_svc.plan.topology import SINGLETONS, Group, Topology
from aiperf_svc.protocol.ports import BOUND_BY, Port, key_file, with_peers
from aiperf_svc.protocol.services import Service

CONFIG_DIR = "/etc/aiperf"
CURVE_DIR = "/etc/aiperf-curve"
ARTIFACTS_DIR = "/artifacts"
TARGET_KEY_ENV = "AIPERF_TARGET_API_KEY"
"""Environment variable in which workers, and who calls hooks, find the target's API key."""
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
METRICS_TOKEN_KEY = "metrics-token"
"""Name of the token that reads `/metrics` and nothing else, in the same Secret."""
METRICS_PATH = "/metrics"
COURIER = "courier"
"""Name of a service's container that shares its pod with a workload's."""

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
    "rank": (1000, 1024 * _MI),
    "courier": (50, 192 * _MI),
    "collector": (200, 512 * _MI),
}
"""Millicores and bytes of each pod unless the config says otherwise. A worker fills one core at
40,000 requests/s; the records manager's memory holds the columns of one million records twice."""
_BESIDE_RANKS_CPU: dict[str, int] = {
    "control": 500,
    "system-controller": 100,
    "dataset-manager": 100,
    "timing-manager": 100,
    "worker-manager": 50,
    "records-manager": 100,
    "record-processor": 250,
}
"""Millicores of the services of a workload on ranks: they pass on a few messages a second, and read
output after its step has ended. So a small node has room for the ranks."""


class Volume(msgspec.Struct, frozen=True):
    """A volume that is mounted into a pod."""

    name: str
    path: str
    kind: Literal[
        "config", "keys", "scratch", "memory", "annotations", "claim", "shared-claim", "host-path"
    ]
    """`scratch` is an empty folder on the node, `memory` one in its memory; `annotations` holds one
    file with an annotation of the pod; `claim` is a PersistentVolumeClaim of each pod,
    `shared-claim` one of all replicas; `host-path` is a folder of the node."""
    size_bytes: int = 0
    """Limit of a scratch or memory volume; 0: none. A pod that exceeds it is evicted. Of a claim:
    what it requests."""
    source: str = ""
    """Folder of a host-path, storage class of a claim (empty: the cluster's default), name of an
    annotation."""
    items: tuple[str, ...] = ()
    """Files of the keys that the pod gets; it gets no others."""


class SecretKey(msgspec.Struct, frozen=True):
    """One value of one of the stack's Secrets. `keys` is made by the stack; the others hold the
    user's values for the target, for the bucket of the results and for a workload's commands."""

    secret: Literal["keys", "target", "upload", "workload"]
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
    """Resources that a container requests. The memory is its limit as well."""

    cpu_millis: int
    memory_bytes: int
    cpu_limit_millis: int | None = None
    gpu: Gpu | None = None
    storage_bytes: int = 0
    """Request of the node's disk: scratch volumes, logs and what is written into the root file
    system."""
    storage_limit_bytes: int = 0
    """Limit of the node's disk; 0: no limit and no request."""
    devices: dict[str, int] = {}
    """Extended resources, such as those of RDMA devices."""

    @property
    def gpu_count(self) -> int:
        """Number of GPUs: those of the config's `gpu`, and of devices that are called so."""
        named = (n for name, n in self.devices.items() if name.endswith("/gpu"))
        return (self.gpu.count if self.gpu else 0) + sum(named)

    def __add__(self, other: "Requests") -> "Requests":
        """Return what two containers of one pod request together."""
        limits = (self.cpu_limit_millis, other.cpu_limit_millis)
        return Requests(
            self.cpu_millis + other.cpu_millis,
            self.memory_bytes + other.memory_bytes,
            None if None in limits else sum(filter(None, limits)),
            self.gpu or other.gpu,
            self.storage_bytes + other.storage_bytes,
            self.storage_limit_bytes + other.storage_limit_bytes,
            {**self.devices, **other.devices},
        )


class ContainerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A container of a pod."""

    name: str
    image: ImagePlan
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    field_env: dict[str, str] = {}
    """Fields of the pod (downward API) by environment variable."""
    secret_env: dict[str, SecretKey] = {}
    volumes: tuple[Volume, ...] = ()
    requests: Requests
    run_as_root: bool = False
    read_only_root: bool = True
    capabilities: tuple[str, ...] = ()
    """Linux capabilities that it keeps; all others are dropped."""
    is_beside: bool = False
    """Of a preparation: it runs beside the containers that follow, until the last of them has ended
    (a native sidecar)."""


class PodSet(msgspec.Struct, frozen=True):
    """Pods with stable names: those of one StatefulSet."""

    name: str
    replicas: int
    node: str = ""
    """Name of the one node on which they run; empty: any that the placement allows."""
    service_id: str = ""
    """Id of the service of a set with one pod; empty: the pod's name."""


class PodPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Pod of one Deployment, or of StatefulSets."""

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
    sidecars: tuple[ContainerPlan, ...] = ()
    """Containers beside the service's own, which is named after the pod unless there are any."""
    preparations: tuple[ContainerPlan, ...] = ()
    """Init containers, one after the other."""
    sets: tuple[PodSet, ...] = ()
    """StatefulSets that hold the replicas; empty: a Deployment does."""
    replicas_on: Literal["any", "apart", "together"] = "any"
    """Whether the replicas must be on different nodes, or on one."""
    scheduler: str | None = None
    labels: dict[str, str] = {}
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

    @property
    def containers(self) -> tuple[ContainerPlan, ...]:
        """The containers that run beside each other."""
        name = COURIER if self.sidecars else self.name
        own = ContainerPlan(
            name=name,
            image=self.image,
            command=self.command,
            args=self.args,
            env=self.env,
            field_env=self.field_env,
            secret_env=self.secret_env,
            volumes=self.volumes,
            requests=self.requests,
            run_as_root=self.run_as_root,
            read_only_root=self.read_only_root,
        )
        return (own, *self.sidecars)

    @property
    def images(self) -> tuple[ImagePlan, ...]:
        """The images of all containers, each once."""
        found = (each.image for each in (*self.preparations, *self.containers))
        return tuple(dict.fromkeys(found))

    @property
    def all_volumes(self) -> tuple[Volume, ...]:
        """The volumes of all containers, each once."""
        every = (*self.containers, *self.preparations)
        return tuple({v.name: v for each in every for v in each.volumes}.values())

    @property
    def total(self) -> Requests:
        """What one replica requests."""
        beside = (each for each in self.preparations if each.is_beside)
        return functools.reduce(operator.add, (e.requests for e in (*self.containers, *beside)))


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An Indexed Job. Its pods share one template."""

    pod: PodPlan
    """Its replicas are the indexes that run at the same time when the Job begins: at least one, and
    one if only the cluster's room limits them."""
    shapes: tuple[int, ...]
    """Numbers of the shapes of the experiment that its indexes run."""
    retries: int
    """Number of times that an index that fails is tried again."""
    deadline_s: int
    """Longest time of a pod on its node."""

    @property
    def completions(self) -> int:
        """Number of indexes."""
        return len(self.shapes)


def service_pods(
    config: Config,
    topology: Topology,
    identity: Identity,
    image: ImagePlan,
    *,
    is_held: bool = False,
    upload_into: str = "",
) -> tuple[PodPlan, ...]:
    """Return one pod for each group of the topology. The load of a held run waits for a start.
    `upload_into` is the folder of a bucket that several stacks share."""
    hosts = {
        service.value: identity.name(group.name)
        for group in topology.groups
        for service in group.services
        if service in SINGLETONS and _ports(group, topology)
    }
    env = PROCESS_ENVIRONMENT | {
        RUN_ID: identity.run_id,
        "AIPERF_CONFIG": f"{CONFIG_DIR}/config.yaml",
        "AIPERF_TOPOLOGY": f"{CONFIG_DIR}/topology.json",
        "AIPERF_BUS": "tcp://*",
        "AIPERF_HOSTS": msgspec.json.encode(hosts).decode(),
        "AIPERF_CURVE_DIR": CURVE_DIR,
        "AIPERF_ARTIFACTS": ARTIFACTS_DIR,
        "AIPERF_LOG_FORMAT": "json",
        "AIPERF_RESULTS_PORT": str(int(Port.RESULTS_API)),
        **({"AIPERF_HELD": "1"} if is_held else {}),
        **({"AIPERF_UPLOAD_INTO": upload_into} if upload_into else {}),
    }
    return tuple(_service_pod(config, topology, group, image, env) for group in topology.groups)


def deadline_pod(
    config: Config,
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
        requests=with_storage(requests_of(config, "deadline"), volumes),
        placement=placement_of(config, "deadline"),
        annotations=own_settings(config, "deadline").annotations,
        calls_api=True,
        ready_timeout_s=seconds(config.deployment.ready_timeout),
    )


def _service_pod(
    config: Config,
    topology: Topology,
    group: Group,
    image: ImagePlan,
    env: dict[str, str],
) -> PodPlan:
    is_worker = Service.WORKER in group.services
    has_results = Service.RECORDS_MANAGER in group.services
    ports = _ports(group, topology)
    placement = placement_of(config, group.name)
    secret_env: dict[str, SecretKey] = {}
    if has_results:
        secret_env["AIPERF_API_TOKEN"] = SecretKey("keys", TOKEN_KEY)
        if config.deployment.monitoring == "prometheus-operator":
            secret_env["AIPERF_METRICS_TOKEN"] = SecretKey("keys", METRICS_TOKEN_KEY)
        for variable, key in upload_keys(config).items():
            secret_env[variable] = SecretKey("upload", key)
    if has_target_key(config) and (is_worker or _calls_hooks(config, group)):
        secret_env[TARGET_KEY_ENV] = SecretKey("target", TARGET_KEY)
    scratch = SCRATCH_BYTES + download_bytes(config)
    results = config.deployment.results.storage
    volumes = (
        Volume("config", CONFIG_DIR, "config"),
        Volume("curve", CURVE_DIR, "keys", items=key_files(group)),
        Volume("tmp", "/tmp", "scratch", scratch),
        Volume("artifacts", ARTIFACTS_DIR, "scratch", results if has_results else scratch),
    )
    return PodPlan(
        name=group.name,
        replicas=group.replicas,
        image=image,
        args=("service",),
        env={"AIPERF_SERVICE": ",".join(group.services), **env},
        field_env={
            "AIPERF_SERVICE_ID": "metadata.name",
            "AIPERF_ADVERTISE": "status.podIP",
            **({"AIPERF_NAMESPACE": "metadata.namespace"} if has_results else {}),
        },
        secret_env=secret_env,
        volumes=volumes,
        ports=ports,
        has_service=group.services[0] in SINGLETONS and bool(ports),
        probe=_probe(ports),
        requests=with_storage(requests_of(config, group.name, topology), volumes),
        placement=placement,
        annotations={
            **(_scrape_annotations(config) if has_results else {}),
            **own_settings(config, group.name).annotations,
        },
        # The API refuses network sysctls for pods in the node's own network.
        sysctls=PORT_RANGE if is_worker and not placement.host_network else {},
        ready_timeout_s=seconds(config.deployment.ready_timeout),
    )


def _calls_hooks(config: Config, group: Group) -> bool:
    has_hooks = isinstance(config, BenchmarkConfig) and bool(config.endpoint.all_hooks)
    return has_hooks and Service.TIMING_MANAGER in group.services


def _scrape_annotations(config: Config) -> dict[str, str]:
    """Return the annotations by which a Prometheus without the operator finds a page."""
    if config.deployment.monitoring != "annotations":
        return {}
    found = {"scrape": "true", "path": METRICS_PATH, "port": str(int(Port.RESULTS_API))}
    return {f"prometheus.io/{name}": value for name, value in found.items()}


def has_target_key(config: Config) -> bool:
    """Return whether the workers need the key of an inference server."""
    return isinstance(config, BenchmarkConfig) and config.endpoint.api_key_env is not None


def download_bytes(config: Config) -> int:
    """Return the room for a download. One of two folders holds it both while it arrives and when it
    is complete."""
    if not isinstance(config, BenchmarkConfig) or not config.dataset.public:
        return 0
    return 2 * config.dataset.max_download


def upload_keys(config: Config) -> dict[str, str]:
    """Return the key of the stack's configuration by environment variable, for an upload to a
    bucket."""
    s3 = config.artifacts.s3
    if s3 is None:
        return {}
    return {**UPLOAD_KEYS, **(UPLOAD_TOKEN if s3.has_session_token else {})}


def key_files(group: Group) -> tuple[str, ...]:
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


def requests_of(config: Config, name: str, topology: Topology | None = None) -> Requests:
    """Return the requests of a pod by its name, without its disk."""
    cpu, memory = _DEFAULTS[name]
    if not isinstance(config, BenchmarkConfig):
        cpu = _BESIDE_RANKS_CPU.get(name, cpu)
    if name == "worker" and topology is not None and isinstance(config, BenchmarkConfig):
        users = math.ceil((config.load.concurrency or 0) / topology.workers)
        wanted = WORKER_BASE_BYTES + users * LARGE_CONNECTION_BYTES
        memory = max(memory, math.ceil(wanted / (64 * _MI)) * 64 * _MI)
    own = own_settings(config, name)
    return Requests(own.cpu or cpu, own.memory or memory, own.cpu_limit)


def with_storage(requests: Requests, volumes: tuple[Volume, ...]) -> Requests:
    """Return the same requests with the disk that the folders and the log may take."""
    limit = LOG_BYTES + sum(each.size_bytes for each in volumes if each.kind == "scratch")
    asked = math.ceil(limit / STORAGE_SHARE / _MI) * _MI
    return msgspec.structs.replace(requests, storage_bytes=asked, storage_limit_bytes=limit)


def placement_of(config: Config, name: str) -> Placement:
    """Return the placement of a pod: its own keys, else those of all pods."""
    return own_settings(config, name).placement.overriding(config.deployment.placement)


_NO_SETTINGS = Pod()


def own_settings(config: Config, name: str) -> Pod:
    """Return the keys of `deployment.pods` for a pod."""
    return config.deployment.pods.get(name, _NO_SETTINGS)


def seconds(duration_ns: int) -> int:
    """Return whole seconds, rounded up, as Kubernetes' timeouts take them."""
    return math.ceil(duration_ns / SECOND_NS)
