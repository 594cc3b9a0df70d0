"""The plan of a stack's pod: its containers, volumes, resources, permissions and placement.

`stack/` turns each PodPlan into a Deployment or into StatefulSets without deciding anything.
"""

import functools
import operator
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from aiperf_svc.config.placement import Gpu, Placement

HOSTNAME = "kubernetes.io/hostname"
"""Label of a node with its name."""
VISIT_ANNOTATION = "aiperf.dev/visit"
"""Annotation that differs in each visit of a blocked experiment that restarts its target."""
COURIER = "courier"
"""Name of the service's container in a pod with a workload's container."""

NETWORK = "network"
"""Name of a target's sidecar, through which events disturb the pod's traffic."""

USER = 65_532
"""Numeric user id of pods, so the kubelet can verify that it is not root."""
GRACE_S = 30
"""Seconds between SIGTERM and SIGKILL; services need 5 s to shut down."""
OPT_OUT_LABELS = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
OPT_OUT_ANNOTATIONS = {"linkerd.io/inject": "disabled"}
"""Keep service meshes out: a sidecar would keep pods alive, a proxy would add latency to the
measurement, and the NetworkPolicies deny the tunnel of an ambient mesh."""
KEEP_ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Keep autoscalers from removing nodes during a run."""


class Volume(msgspec.Struct, frozen=True):
    """A volume that is mounted into a pod."""

    name: str
    path: str
    kind: Literal[
        "config", "keys", "scratch", "memory", "annotations", "claim", "shared-claim",
        "existing-claim", "host-path", "image"
    ]  # fmt: skip
    """`scratch` is an empty folder on the node, `memory` one in its memory; `annotations` holds one
    file with an annotation of the pod; `claim` is a PersistentVolumeClaim of each pod,
    `shared-claim` one of all replicas, `existing-claim` one created elsewhere; `host-path` is a
    folder of the node, `image` the files of an image."""
    size_bytes: int = 0
    """Size limit of a scratch or memory volume; 0: none. A pod that exceeds it is evicted. For a
    claim: its requested size."""
    source: str = ""
    """Folder of a host-path, storage class of a claim (empty: the cluster's default), name of an
    existing claim or an annotation, reference of an image."""
    is_read_only: bool = False
    """True if it is read-only for the containers. Volumes of config and keys always are."""
    items: tuple[str, ...] = ()
    """Files of the keys that the pod receives."""


class SecretKey(msgspec.Struct, frozen=True):
    """One value of one of the stack's Secrets. The stack generates `keys`. The others hold the
    user's values for the target, for pages of metrics, for the bucket of the results and for a
    workload's commands."""

    secret: Literal["keys", "target", "pages", "upload", "workload"]
    key: str


class Probe(msgspec.Struct, frozen=True):
    """Readiness probe of a pod: HTTP if it has a path, else an open port."""

    port: int
    path: str | None = None


class ImagePlan(msgspec.Struct, frozen=True):
    """A container image and its pull settings."""

    name: str
    pull_policy: str
    pull_secrets: tuple[str, ...] = ()


class Requests(msgspec.Struct, frozen=True):
    """Resources that a container requests. The memory request is also the limit."""

    cpu_millis: int
    memory_bytes: int
    cpu_limit_millis: int | None = None
    gpu: Gpu | None = None
    storage_bytes: int = 0
    """Requested disk of the node: scratch volumes, logs and files written into the root file
    system."""
    storage_limit_bytes: int = 0
    """Disk limit on the node; 0: no limit and no request."""
    devices: dict[str, int] = {}
    """Extended resources, such as those of RDMA devices."""

    @property
    def gpu_count(self) -> int:
        """Number of GPUs: the config's `gpu`, and extended resources named like GPUs."""
        named = (n for name, n in self.devices.items() if name.endswith("/gpu"))
        return (self.gpu.count if self.gpu else 0) + sum(named)

    def __add__(self, other: "Requests") -> "Requests":
        """Return the requests of two containers of one pod together."""
        limits = (self.cpu_limit_millis, other.cpu_limit_millis)
        return Requests(
            self.cpu_millis + other.cpu_millis,
            self.memory_bytes + other.memory_bytes,
            None if None in limits else sum(filter(None, limits)),
            self.gpu or other.gpu,
            self.storage_bytes + other.storage_bytes,
            self.storage_limit_bytes + other.storage_limit_bytes,
            {
                name: self.devices.get(name, 0) + other.devices.get(name, 0)
                for name in (*self.devices, *other.devices)
            },
        )


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a container, with its arguments and environment."""

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


class ContainerPlan(Program, frozen=True, kw_only=True):
    """A container of a pod."""

    capabilities: tuple[str, ...] = ()
    """Linux capabilities that the container keeps; all others are dropped."""
    is_sidecar: bool = False
    """Init containers only: it keeps running beside the following containers, until the last of
    them has ended (a native sidecar)."""


ProgramT = TypeVar("ProgramT", bound=Program)


class PodSet(msgspec.Struct, frozen=True):
    """Pods of one StatefulSet, which have stable names."""

    name: str
    replicas: int
    node: str = ""
    """Name of the only node on which they run; empty: any node that the placement allows."""
    service_id: str = ""
    """Id of the service if the set has one pod; empty: the pod's name."""


class PodPlan(Program, frozen=True, kw_only=True):
    """Pod of one Deployment, or of StatefulSets, and the program of its own container."""

    replicas: int
    sidecars: tuple[ContainerPlan, ...] = ()
    """Containers besides the service's own, which is named after the pod unless this is set."""
    preparations: tuple[ContainerPlan, ...] = ()
    """Init containers, in order."""
    sets: tuple[PodSet, ...] = ()
    """StatefulSets that hold the replicas; empty: a Deployment holds them."""
    replicas_on: Literal["any", "apart", "together"] = "any"
    """Whether the replicas must run on different nodes, or on one node."""
    scheduler: str | None = None
    labels: dict[str, str] = {}
    ports: dict[str, int] = {}
    """Ports that the pod binds. They are also those of its Service, if it has one."""
    has_service: bool = False
    """True if a stable name leads to the pod."""
    probe: Probe | None = None
    """Readiness probe; None: the pod is ready as soon as it runs."""
    ready_file: str | None = None
    """File that the pod creates once its first work is done. Until then it is not ready."""
    placement: Placement
    annotations: dict[str, str] = {}
    sysctls: dict[str, str] = {}
    grace_s: int = GRACE_S
    """Seconds between SIGTERM and SIGKILL."""
    calls_api: bool = False
    """True if the pod has a ServiceAccount token."""
    shares_processes: bool = False
    """True if the containers share a PID namespace, so no server has PID 1."""
    rollout: Literal["Recreate", "RollingUpdate"] = "Recreate"
    """How a Deployment replaces its pods."""
    ready_timeout_s: int

    @property
    def containers(self) -> tuple[ContainerPlan, ...]:
        """Containers that run at the same time."""
        program = {name: getattr(self, name) for name in Program.__struct_fields__}
        name = COURIER if self.sidecars else self.name
        return (ContainerPlan(**program | {"name": name}), *self.sidecars)

    @property
    def images(self) -> tuple[ImagePlan, ...]:
        """Distinct images of all containers."""
        found = (each.image for each in (*self.preparations, *self.containers))
        return tuple(dict.fromkeys(found))

    @property
    def image_names(self) -> tuple[str, ...]:
        """Distinct image names of all containers and volumes."""
        mounted = (volume.source for volume in self.all_volumes if volume.kind == "image")
        return tuple(dict.fromkeys((*(image.name for image in self.images), *mounted)))

    @property
    def all_volumes(self) -> tuple[Volume, ...]:
        """Distinct volumes of all containers."""
        every = (*self.containers, *self.preparations)
        return tuple({v.name: v for each in every for v in each.volumes}.values())

    @property
    def total(self) -> Requests:
        """Requests of one replica."""
        sidecars = (each for each in self.preparations if each.is_sidecar)
        return functools.reduce(operator.add, (e.requests for e in (*self.containers, *sidecars)))

    @property
    def size(self) -> tuple[int, float]:
        """Number of GPUs, then a measure of CPU and memory, for comparison with other pods."""
        requests = self.total
        return requests.gpu_count, requests.cpu_millis / 1000 + requests.memory_bytes / 2**32


def with_images(pod: PodPlan, rename: Callable[[str], str]) -> PodPlan:
    """Return the pod with renamed images."""
    return msgspec.structs.replace(
        _renamed(pod, rename),
        sidecars=tuple(_renamed(each, rename) for each in pod.sidecars),
        preparations=tuple(_renamed(each, rename) for each in pod.preparations),
    )


def _renamed(program: ProgramT, rename: Callable[[str], str]) -> ProgramT:
    volumes = tuple(
        msgspec.structs.replace(each, source=rename(each.source)) if each.kind == "image" else each
        for each in program.volumes
    )
    image = msgspec.structs.replace(program.image, name=rename(program.image.name))
    return msgspec.structs.replace(program, image=image, volumes=volumes)


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An Indexed Job. Its pods share one template."""

    pod: PodPlan
    """Its replicas are the indexes that run at the same time when the Job begins. At least one; one
    if only the cluster's room limits them."""
    shapes: tuple[int, ...]
    """Numbers of the experiment's shapes that its indexes run."""
    retries: int
    """Number of retries of an index that fails."""
    deadline_s: int
    """Maximum time of a pod on its node."""

    @property
    def completions(self) -> int:
        """Number of indexes."""
        return len(self.shapes)
