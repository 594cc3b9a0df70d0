"""Facts of a cluster for its checks: nodes, GPU exporters and the network."""

import msgspec

from aiperf_svc.domain.json_objects import Json


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource is a GPU or a part of one: `nvidia.com/gpu`,
    `nvidia.com/mig-1g.5gb`."""
    name = resource.rpartition("/")[2]
    return name == "gpu" or name.startswith(("gpu.", "mig-"))


def gpus_of(pod_spec: Json) -> int:
    """Return the number of GPUs that the containers of a pod may use."""
    limits = (
        (each.get("resources") or {}).get("limits") or {}
        for each in pod_spec.get("containers") or ()
    )
    return sum(int(n) for each in limits for name, n in each.items() if is_gpu(name))


def server_container(pod_spec: Json, port: int | None) -> str:
    """Return the name of the container of a pod that serves at a port; without one, of the
    first."""
    containers = pod_spec["containers"]
    serving = (
        each
        for each in containers
        if any(found.get("containerPort") == port for found in each.get("ports") or ())
    )
    return str(next(serving, containers[0])["name"])


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    """Extended resource: `nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`."""
    product: str
    """Type of the GPUs by the node's labels; empty if unknown."""
    capacity: int
    allocatable: int
    """GPUs that pods may request. Without its device plugin, a node keeps the capacity and has zero
    here."""
    used: int | None
    """GPUs that pods have requested; None if pods may not be listed."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_ready: bool
    is_open: bool = True
    """False for a cordoned node."""
    pressures: tuple[str, ...] = ()
    """Conditions of a lack of resources: `MemoryPressure`."""
    clock_ahead_s: int | None = None
    """How far its clock is ahead of the API server's, to a second; None if unknown."""
    gpus: tuple[NodeGpus, ...] = ()
    is_labelled_gpu: bool = False
    """True if a label marks it as a node with a GPU, whatever its device plugin offers."""

    @property
    def has_gpus(self) -> bool:
        """True if it has GPUs, whether or not pods can use them."""
        return self.is_labelled_gpu or any(each.capacity for each in self.gpus)


class Exporter(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a GPU exporter that runs."""

    namespace: str
    pod: str
    node: str
    url: str
    """Its page, by the pod's own address."""
    label: tuple[str, str]
    """Label by which it was found."""
    port: int
    is_on_host: bool = False
    """True if it has the address of its node."""


class GpuPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page of an exporter, as a pod has read it."""

    failure: str = ""
    """Why there was no page; empty if there was one."""
    gpus: int = 0
    xids: tuple[tuple[str, int], ...] = ()
    """GPUs with an Xid error, each with the number of its last one."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a pod that connected to two ports of another one. A policy allows one of them."""

    not_tried: str = ""
    """Why no pod could try; empty if one did."""
    allowed: str = ""
    """Error of the connection to the port that is allowed; empty if it succeeded."""
    forbidden: str = ""
    """Error of the connection to the port that is not; empty if it succeeded."""
    pages: dict[str, GpuPage] = {}
    """Page of each exporter by its URL."""
