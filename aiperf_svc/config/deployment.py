"""The layout of the services, and the settings that only a cluster needs.

Nothing here changes the measurement. A local run only uses `layout`, `raw_route`, `transport` and
`registration_timeout`.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import HOUR_NS, MINUTE_NS, SECOND_NS, Cidr, Model, Verbatim
from aiperf_svc.config.placement import Placement, Pod, Ranks, check_fixed
from aiperf_svc.config.target import Target
from aiperf_svc.config.units import (
    CpuMillis,
    DurationNs,
    PositiveDurationNs,
    SizeBytes,
    format_duration,
)
from aiperf_svc.domain.name_suggestions import did_you_mean

POD_NAMES = (
    "control",
    "system-controller",
    "dataset-manager",
    "timing-manager",
    "worker-manager",
    "records-manager",
    "worker",
    "record-processor",
    "deadline",
    "collector",
    "readiness",
)
"""Keys of `deployment.pods`. `control` is the only service pod of layout compact, `collector` has
the results of Jobs (`experiment.fan_out`), `readiness` waits for a target of kind release."""
RANK_POD = "rank"
"""The key of a workload's ranks in `deployment.pods`."""


OWN_LABELS = (
    "aiperf.dev/",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
)
"""Labels that the tool sets and selects by. A name that ends with `/` covers all names below it."""
OWN_ANNOTATIONS = ("aiperf.dev/", "pulumi.com/")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_REGISTRY = r"^[a-z0-9][a-z0-9.-]*(:\d{1,5})?(/[a-z0-9][a-z0-9._-]*)*$"
_NAME = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")


def check_own(entries: dict[str, str], key: str, own: tuple[str, ...]) -> None:
    """Raise ValueError for a key that Kubernetes refuses or that this tool uses."""
    for name in entries:
        if not _KEY.fullmatch(name):
            raise ValueError(f"{key}: {name!r} is not a key; expected NAME or DOMAIN/NAME")
        if any(name == each or (each.endswith("/") and name.startswith(each)) for each in own):
            raise ValueError(f"{key}: {name} is set by this tool; use another key")


class Transport(Model):
    """Transport of the services' messages on one machine. Between pods it is always TCP with
    CURVE."""

    kind: Literal["ipc", "tcp"] = "ipc"
    curve: bool = False

    @model_validator(mode="after")
    def _curve_needs_tcp(self) -> Self:
        if self.curve and self.kind != "tcp":
            raise ValueError("curve needs kind: tcp; ipc sockets are protected by their folder")
        return self


class Namespace(Model):
    """Ownership of the namespace. It is configured, never detected: a program that checks whether
    the namespace exists would mistake its own for an existing one at the second `up`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] | None = None
    mode: Literal["auto", "create", "existing"] = "auto"
    """auto: created under a unique name and removed; create: created under `name`, refused if it
    exists, and removed; existing: used and kept, only our own objects are removed."""

    @model_validator(mode="after")
    def _name_fits_mode(self) -> Self:
        if self.mode == "auto" and self.name is not None:
            raise ValueError("mode: auto makes its own name; use mode: create or mode: existing")
        if self.mode != "auto" and self.name is None:
            raise ValueError(f"mode: {self.mode} needs name")
        return self


class Image(Model):
    """The one image of all services. `AIPERF_IMAGE` replaces `name`, unless that has a digest."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """Name with a tag or digest; default: `localhost/aiperf-svc:VERSION`."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets that exist in the namespace."""

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        if self.name is not None:
            check_fixed(self.name)
        return self


class Results(Model):
    """Access to the results from outside the cluster. `port-forward` needs no further objects."""

    expose: Literal["port-forward", "NodePort", "LoadBalancer", "Ingress"] = "port-forward"
    node_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    host: str | None = None
    """Host name of the results, for an Ingress."""
    ingress_class: str | None = None
    tls_secret: str | None = None
    """Name of an existing Secret with the certificate, for an Ingress."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the Service or Ingress that exposes the results."""
    allow_cidrs: tuple[Cidr, ...] = ()
    """Address ranges that may reach the results; all if empty. A token is always required."""
    storage: SizeBytes = 10 * 2**30
    """Limit of the results' folder on the node, in bytes."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.expose == "Ingress" and not self.host:
            raise ValueError("expose: Ingress needs host")
        if self.expose != "Ingress" and (self.host or self.ingress_class or self.tls_secret):
            raise ValueError("host, ingress_class and tls_secret need expose: Ingress")
        if self.node_port and self.expose != "NodePort":
            raise ValueError("node_port needs expose: NodePort")
        return self


Monitoring = Literal["none", "annotations", "prometheus-operator"]


class Prices(Model):
    """Prices per hour for the estimate in the preview, in any currency."""

    cpu: Annotated[float, Field(ge=0)] = 0.0
    memory_gib: Annotated[float, Field(ge=0)] = 0.0
    gpu: Annotated[float, Field(ge=0)] = 0.0
    currency: str = "USD"


class Limits(Model):
    """Maximum resources that all stacks of the file may use at the same time. A config that could
    use more is refused before anything is created."""

    nodes: Annotated[int, Field(gt=0)] | None = None
    """Maximum number of nodes on which the pods may run: those that the placement names, and one
    for each pod that it leaves to the scheduler."""
    pods: Annotated[int, Field(gt=0)] | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    cpu: CpuMillis | None = None
    """Maximum CPU that the pods may request."""
    memory: SizeBytes | None = None
    """Maximum memory that the pods may request."""
    time: PositiveDurationNs | None = None
    """Maximum time until the last stack has removed itself."""


class Deployment(Model):
    """The layout of the services."""

    layout: Literal["auto", "per-service", "compact"] = "auto"
    """`compact` runs the five single services in one process or pod, `per-service` in one each.
    `auto` is compact locally and per-service on a cluster."""
    raw_route: Literal["auto", "proxy", "direct"] = "auto"
    """Route of raw records: through the controller's proxy, or directly from worker to record
    processor."""
    transport: Transport = Transport()
    registration_timeout: DurationNs = 60 * SECOND_NS
    """Time within which every service must register."""
    namespace: Namespace = Namespace()
    labels: dict[str, Verbatim] = Field(default_factory=dict)
    """Labels of all objects and pods of the stack, for clusters that require an owner or a cost
    centre."""
    annotations: dict[str, Verbatim] = Field(default_factory=dict)
    """Annotations of all objects and pods of the stack."""
    image: Image = Image()
    require_digests: bool = False
    """Refuse images without a digest, also those of `AIPERF_IMAGE` and `AIPERF_WORKLOAD_IMAGE`."""
    registry_mirror: Annotated[str, Field(pattern=_REGISTRY)] | None = None
    """Registry, with or without a path, that replaces the registry in the name of each image:
    `registry.example.com/mirror`. `docker.io/vllm/vllm-openai` and `localhost/aiperf-svc` are then
    pulled as `registry.example.com/mirror/vllm/vllm-openai` and `…/aiperf-svc`."""
    limits: Limits = Limits()
    queue: Annotated[str, Field(pattern=_NAME)] | None = None
    """LocalQueue of Kueue in the namespace, in which the whole stack waits for admission: all of
    its pods are admitted together. Needs `namespace.mode: existing`."""
    queue_timeout: PositiveDurationNs = 10 * MINUTE_NS
    """Maximum time until the queue admits the stack. The times to start and to live begin
    afterwards."""
    wait_for_room: DurationNs = 0
    """Maximum time for which a stack waits before it is created until the nodes and the namespace's
    quotas have room for it. Without it, a stack that does not fit is refused immediately."""
    ttl: DurationNs = 2 * HOUR_NS
    """Time after which the stack deletes itself from within the cluster, even if the results were
    not collected. It must cover the start of its pods and the load. In a `queue` it counts from the
    admission."""
    ready_timeout: DurationNs = 5 * MINUTE_NS
    """Maximum time until a pod of the stack is ready."""
    delete_timeout: DurationNs = 5 * MINUTE_NS
    """Maximum time until a deleted object is gone."""
    placement: Placement = Placement()
    """Placement of all pods of the services."""
    pods: dict[str, Pod] = Field(default_factory=dict)
    """Settings of single pods, by name: `worker`, `records-manager`, …"""
    target: Target = Target()
    ranks: Ranks = Ranks()
    """Placement and resources of a workload's ranks."""
    results: Results = Results()
    monitoring: Monitoring = "none"
    """How a Prometheus in the cluster finds the metrics page of the pod with the results.
    annotations: `prometheus.io/scrape`, and the page needs no token, because annotations hold none;
    prometheus-operator: a PodMonitor with a token for this page only, and a PrometheusRule."""
    monitoring_labels: dict[str, str] = Field(default_factory=dict)
    """Labels by which a Prometheus selects PodMonitors and PrometheusRules: `release: NAME` for
    kube-prometheus-stack."""
    network_policies: bool = True
    """Create NetworkPolicies that deny by default and allow what the run needs. Turn it off if the
    cluster's own policies do the same."""
    prices: Prices = Prices()
    hold_drains: bool = True
    """Create a PodDisruptionBudget that makes the drain of a node wait for as long as start and
    load may take, which is the least ttl. If the load has no duration, the drain waits until the
    stack is gone. Off: a drain evicts the pods, and the run fails."""
    max_drain_hold: PositiveDurationNs | None = None
    """Maximum time for which the PodDisruptionBudget makes a drain wait, even if start and load may
    take longer or have no bound."""
    api_server_cidrs: tuple[Cidr, ...] = ()
    """Address ranges of the API server as pods reach it (`kubectl get endpoints kubernetes`): the
    deadline's pod can reach nothing else. Empty: `run` uses the addresses that the cluster reports,
    and every address where it may not read them; `pulumi up` allows every address. A wrong range
    makes `up` fail; one that becomes wrong later keeps the stack from deleting itself."""

    @property
    def longest_life(self) -> int:
        """Time in ns from the creation of the stack until it has removed itself."""
        return self.ttl + (self.queue_timeout if self.queue is not None else 0)

    @model_validator(mode="after")
    def _queue_fits(self) -> Self:
        if self.queue is None:
            return self
        if self.namespace.mode != "existing":
            raise ValueError(
                f"queue {self.queue} is a LocalQueue of a namespace that exists: set namespace: "
                "{name: NAME, mode: existing}"
            )
        if self.ranks.gang != "none":
            raise ValueError(
                f"queue {self.queue} admits the ranks with the rest of the stack; leave out "
                "ranks.gang"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in self.pods:
            if name == "target":
                raise ValueError("pods.target: the target's keys are those of deployment.target")
            if name not in (*POD_NAMES, RANK_POD):
                names = (*POD_NAMES, RANK_POD)
                hint = did_you_mean(name, names, f"expected one of {', '.join(names)}")
                raise ValueError(f"pods.{name}: no pod has this name{hint}")
        check_own(self.labels, "labels", OWN_LABELS)
        check_own(self.annotations, "annotations", OWN_ANNOTATIONS)
        if any(not _LABEL_VALUE.fullmatch(value) for value in self.labels.values()):
            raise ValueError(
                "labels: a value has at most 63 letters, digits, `-`, `_` and `.`, and begins and "
                "ends with a letter or digit; annotations take any text"
            )
        claims = [each.source for each in self.target.volumes if each.kind == "claim"]
        if claims and self.namespace.mode != "existing":
            raise ValueError(
                f"target.volumes: claim {claims[0]} can only be mounted in its own namespace; use "
                "namespace: {mode: existing, name: …}"
            )
        if self.max_drain_hold is not None and not self.hold_drains:
            raise ValueError("max_drain_hold has no effect with hold_drains: false")
        if self.monitoring_labels and self.monitoring != "prometheus-operator":
            raise ValueError("monitoring_labels needs monitoring: prometheus-operator")
        if self.ttl < 10 * SECOND_NS:
            raise ValueError(
                f"ttl {format_duration(self.ttl)} is below 10s: the stack would delete itself "
                "while it starts"
            )
        return self
