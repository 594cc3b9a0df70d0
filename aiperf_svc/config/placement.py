"""Settings of pods, including a workload's ranks: image references, nodes that pods may run on, and
resources."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import CpuMillis, SizeBytes
from aiperf_svc.domain.errors import ConfigError

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")


class Toleration(Model):
    """A taint that a pod accepts. Spot nodes usually carry one."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty: all effects."""

    @model_validator(mode="after")
    def _value_belongs_to_equal(self) -> Self:
        if self.value and self.operator != "Equal":
            raise ValueError("value needs operator: Equal")
        if not self.key and self.operator == "Equal":
            raise ValueError("operator: Equal needs key")
        return self


class Network(Model):
    """A second network interface of the pod, by Multus."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the NetworkAttachmentDefinition: `name` or `namespace/name`."""
    mtu: Annotated[int, Field(ge=576, le=65_535)] | None = None
    """Passed to the definition's `tuning` plugin."""


class Placement(Model):
    """Nodes on which pods run."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that the node must have."""
    require_nodes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Allowed values by node label (node affinity, required)."""
    prefer_nodes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Preferred values by node label (node affinity, preferred)."""
    tolerations: tuple[Toleration, ...] = ()
    away_from: tuple[str, ...] = ()
    """Names of pods of this stack (`target`) whose nodes are avoided if possible."""
    spread: Literal["hostname", "zone", "none"] = "hostname"
    """Domain over which replicas of one pod are spread evenly if possible."""
    priority_class: str | None = None
    host_network: bool = False
    """Use the node's own network: needs Pod Security `privileged`, and no NetworkPolicy applies."""
    networks: tuple[Network, ...] = ()

    def overriding(self, common: Self) -> Self:
        """Return this placement, with `common`'s value for each key that has its default."""
        own = {name: value for name, value in self if value != getattr(_DEFAULTS, name)}
        return common.model_copy(update=own)


_DEFAULTS = Placement()


class Gpu(Model):
    """GPUs of one pod, as the node's device plugin offers them."""

    count: Annotated[int, Field(gt=0, le=64)] = 1
    resource: str = "nvidia.com/gpu"
    type: str | None = None
    """Value of the node label `type_label`, e.g. `NVIDIA-H100-80GB-HBM3`."""
    type_label: str = "nvidia.com/gpu.product"
    runtime_class: str | None = None
    """RuntimeClass of the pod, where the cluster's container runtime needs one for GPUs."""


class Pod(Model):
    """Settings of one pod. A key left out keeps its default."""

    cpu: CpuMillis | None = None
    memory: SizeBytes | None = None
    """Memory request and limit."""
    cpu_limit: CpuMillis | None = None
    """CPU limit. Default: none, since a throttled pod would measure its own quota."""
    placement: Placement = Placement()
    annotations: dict[str, str] = Field(default_factory=dict)


class RankVolume(Model):
    """The folder that a disk benchmark measures, mounted into each rank."""

    kind: Literal["empty-dir", "claim", "shared-claim", "host-path"] = "empty-dir"
    """`empty-dir`: a folder on the node's disk; `claim`: one PersistentVolumeClaim for each rank;
    `shared-claim`: one for all ranks (ReadWriteMany); `host-path`: a folder of the node, which
    needs Pod Security `privileged`."""
    size: SizeBytes = 16 * 2**30
    """Limit of an empty-dir, or request of a claim."""
    storage_class: Annotated[str, Field(min_length=1)] | None = None
    """Storage class of a claim. Default: that of the cluster."""
    path: Annotated[str, Field(pattern=r"^/[^\s]*$")] | None = None
    """Folder of a host-path."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if (self.path is not None) != (self.kind == "host-path"):
            raise ValueError("{kind} host-path needs {path}, and no other kind takes it")
        if self.storage_class is not None and "claim" not in self.kind:
            raise ValueError(f"{{storage_class}} needs {{kind}} claim, not {self.kind}")
        return self


class RankNetwork(Model):
    """A network of Multus that the ranks measure instead of the pod network."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the NetworkAttachmentDefinition: `name` or `namespace/name`."""
    attach: Literal["default", "additional"] = "default"
    """`default` replaces the pod's own interface and address (annotation
    `v1.multus-cni.io/default-network`); `additional` adds an interface (annotation
    `k8s.v1.cni.cncf.io/networks`), whose address the ranks then use."""


class Ranks(Model):
    """Placement and resources of the ranks. Not used in a local run, where all ranks are on this
    machine."""

    nodes: Literal["apart", "together", "any"] | tuple[str, ...] = "apart"
    """`apart`: each rank on its own node; `together`: all on one node; `any`: as the scheduler
    decides; or the names of nodes, assigned to the ranks in turn."""
    pairs: Literal["one", "all", "rounds"] = "one"
    """`all`: a workload of two ranks gets `count` ranks and measures every pair of them in turn;
    `rounds`: the same in rounds, in which pairs of different nodes are measured at the same
    time."""
    count: Annotated[int, Field(ge=2, le=1_000)] | None = None
    """Ranks of `pairs: all` or `rounds`. Default: one for each of the names in `nodes`."""
    gang: Literal["none", "kueue", "volcano", "coscheduling"] = "none"
    """Adds the labels and annotations that this scheduler needs to place all ranks or none."""
    queue: Annotated[str, Field(min_length=1)] | None = None
    """Queue of kueue or volcano."""
    host_network: bool = False
    """Use the nodes' own network: needs Pod Security `privileged`, and no NetworkPolicy applies."""
    network: RankNetwork | None = None
    mtu: Annotated[int, Field(ge=576, le=65_535)] | None = None
    """MTU of the ranks' interface, set by an init container with NET_ADMIN: needs Pod Security
    `privileged`."""
    devices: dict[str, Annotated[int, Field(gt=0, le=64)]] = Field(default_factory=dict)
    """Extended resources of each rank, such as `rdma/hca_shared_devices_a: 1`."""
    volume: RankVolume | None = None
    read_only_root: bool = False
    """Mount the root file system of the ranks read-only, for images whose tool writes only into
    /tmp, /dev/shm, its folder and the volume."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.queue is not None and self.gang not in ("kueue", "volcano"):
            raise ValueError(f"{{queue}} needs {{gang}} kueue or volcano, not {self.gang}")
        if self.host_network and (self.network is not None or self.mtu is not None):
            raise ValueError("{host_network} uses the node's interfaces: no {network} and no {mtu}")
        named = len(self.nodes) if isinstance(self.nodes, tuple) else 0
        if self.pairs != "one" and (self.count or named) < 2:
            raise ValueError(
                f"{{pairs}} {self.pairs} needs {{count}}, or the names of two or more {{nodes}}"
            )
        if self.pairs == "one" and self.count is not None:
            raise ValueError(
                "{count} needs {pairs} all or rounds: the workload itself knows its ranks"
            )
        if isinstance(self.nodes, tuple) and not self.nodes:
            raise ValueError("{nodes} is empty; expected apart, together, any or names of nodes")
        return self


def check_digest(name: str) -> None:
    """Raise ValueError if the part of a reference after `@` is not a digest."""
    at = name.find("@")
    if at >= 0 and not _DIGEST.fullmatch(name[at:]):
        raise ValueError(f"{name!r}: expected @sha256: and 64 hexadecimal digits after the name")


def check_fixed(name: str) -> None:
    """Raise ValueError if a reference has neither a tag nor a digest, or a broken digest."""
    check_digest(name)
    last = name.rpartition("/")[2]
    if "@" not in last and (":" not in last or last.endswith(":latest")):
        raise ValueError(f"{name!r} names no fixed version: add a tag or a digest")


def is_pinned(name: str) -> bool:
    """Return whether the reference names an image by its digest, which no registry can move."""
    return _DIGEST.search(name) is not None


def is_mutable(name: str) -> bool:
    """Return whether a registry may serve a different image under this reference later. Names below
    `localhost/` are in no registry."""
    return not is_pinned(name) and not name.startswith("localhost/")


def mirrored(name: str, mirror: str | None) -> str:
    """Return the name of an image in the registry `mirror`, which replaces the one in `name`."""
    if mirror is None or name.startswith(f"{mirror}/"):
        return name
    first, slash, rest = name.partition("/")
    if not slash:
        # The name of an official image of Docker Hub.
        return f"{mirror}/library/{name}"
    has_registry = "." in first or ":" in first or first == "localhost"
    if first in ("docker.io", "index.docker.io") and "/" not in rest:
        rest = f"library/{rest}"
    return f"{mirror}/{rest if has_registry else name}"


def check_replacement(configured: str | None, image: str, *, key: str, variable: str) -> str:
    """Return a note if the environment variable's image replaces the config's, else an empty text.
    Raises ConfigError if the config pins its image by a digest."""
    if configured is None or image == configured:
        return ""
    if is_pinned(configured):
        raise ConfigError(
            f"{variable} is {image}, but {key} pins another image by its digest: {configured}; "
            f"unset {variable} to use the pinned image, or change {key} in the file"
        )
    return f"{variable} replaces {key}: {image} in place of {configured}"
