"""Settings of one pod: the nodes that it may run on, and its resources."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import CpuMillis, SizeBytes


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
        """Return this placement, with `common`'s value for each key that is left at its default."""
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
    """CPU limit; None by default, since a throttled pod would measure its own quota."""
    placement: Placement = Placement()
    annotations: dict[str, str] = Field(default_factory=dict)
