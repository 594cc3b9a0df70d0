"""Placement and resources of a workload's ranks: nodes, networks, devices, disks."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import SizeBytes


class RankVolume(Model):
    """The folder that a disk benchmark measures, mounted into each rank."""

    kind: Literal["empty-dir", "claim", "shared-claim", "host-path"] = "empty-dir"
    """`empty-dir`: a folder on the node's disk; `claim`: one PersistentVolumeClaim for each rank;
    `shared-claim`: one for all ranks (ReadWriteMany); `host-path`: a folder of the node, which
    needs Pod Security `privileged`."""
    size: SizeBytes = 16 * 2**30
    """Limit of an empty-dir, or request of a claim."""
    storage_class: Annotated[str, Field(min_length=1)] | None = None
    """Storage class of a claim; None: the cluster's default."""
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
    """`apart`: each rank on a node of its own; `together`: all on one node; `any`: as the scheduler
    likes; or the names of nodes, dealt out to the ranks in turn."""
    pairs: Literal["one", "all", "rounds"] = "one"
    """`all`: a workload of two ranks gets `count` ranks and measures every pair of them in turn;
    `rounds`: the same in rounds, in which pairs of different nodes are measured at the same
    time."""
    count: Annotated[int, Field(ge=2, le=1_000)] | None = None
    """Ranks of `pairs: all` or `rounds`; None: one for each of the names in `nodes`."""
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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.queue is not None and self.gang not in ("kueue", "volcano"):
            raise ValueError(f"{{queue}} needs {{gang}} kueue or volcano, not {self.gang}")
        if self.host_network and (self.network is not None or self.mtu is not None):
            raise ValueError("{host_network} uses the node's interfaces: no {network} and no {mtu}")
        is_counted = self.count is not None or isinstance(self.nodes, tuple)
        if self.pairs != "one" and not is_counted:
            raise ValueError(f"{{pairs}} {self.pairs} needs {{count}}, or the names of {{nodes}}")
        if self.pairs == "one" and self.count is not None:
            raise ValueError(
                "{count} needs {pairs} all or rounds: the workload itself knows its ranks"
            )
        if isinstance(self.nodes, tuple) and not self.nodes:
            raise ValueError("{nodes} is empty; expected apart, together, any or names of nodes")
        return self
