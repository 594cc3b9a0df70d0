"""Facts of a cluster for its checks: nodes, GPU exporters and the network."""

import msgspec

from aiperf_svc.domain.json_objects import Json


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource is a GPU or part of one: `nvidia.com/gpu`,
    `nvidia.com/mig-1g.5gb`."""
    name = resource.rpartition("/")[2]
    return name == "gpu" or name.startswith(("gpu.", "mig-"))


def gpus_of(pod_spec: Json) -> int:
    """Return the number of GPUs available to the containers of a pod."""
    limits = (
        (each.get("resources") or {}).get("limits") or {}
        for each in pod_spec.get("containers") or ()
    )
    return sum(int(n) for each in limits for name, n in each.items() if is_gpu(name))


def server_container(pod_spec: Json, port: int | None) -> str:
    """Return the name of the container of a pod that listens on a port; the first one without a
    port."""
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
    """GPUs that pods may request. A node without its device plugin keeps its capacity but has zero
    here."""
    used: int | None
    """GPUs that pods have requested; None if listing pods is not permitted."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_ready: bool
    is_open: bool = True
    """False for a cordoned node."""
    pressures: tuple[str, ...] = ()
    """Conditions that report a lack of resources: `MemoryPressure`."""
    clock_ahead_s: int | None = None
    """Seconds by which its clock is ahead of the API server's; None if unknown."""
    gpus: tuple[NodeGpus, ...] = ()
    is_labelled_gpu: bool = False
    """True if a label marks it as a GPU node, whatever its device plugin offers."""

    @property
    def has_gpus(self) -> bool:
        """True if it has GPUs, usable by pods or not."""
        return self.is_labelled_gpu or any(each.capacity for each in self.gpus)


class Exporter(msgspec.Struct, frozen=True, kw_only=True):
    """A running pod of a GPU exporter."""

    namespace: str
    pod: str
    node: str
    url: str
    """URL of its page, with the pod's own address."""
    label: tuple[str, str]
    """Label that identified it as an exporter."""
    port: int
    is_on_host: bool = False
    """True if it uses the address of its node."""


class GpuPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page of an exporter, as read by a pod."""

    failure: str = ""
    """Why there was no page; empty if there was one."""
    gpus: int = 0
    xids: tuple[tuple[str, int], ...] = ()
    """GPUs with an Xid error, each with its latest error number."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a pod that connected to two ports of another pod. A policy allows only one."""

    not_tried: str = ""
    """Why no pod could try; empty if one did."""
    allowed: str = ""
    """Error of the connection to the allowed port; empty if it succeeded."""
    forbidden: str = ""
    """Error of the connection to the forbidden port; empty if it succeeded."""
    pages: dict[str, GpuPage] = {}
    """Page of each exporter by its URL."""
