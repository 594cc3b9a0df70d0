"""Settings of telemetry: metrics of the server and its GPUs during a run."""

import ipaddress
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model, repeated
from aiperf_svc.config.units import PositiveDurationNs, format_duration
from aiperf_svc.config.urls import address_of

MAX_SOURCES = 64


def _page(url: str) -> str:
    """Return the URL of a page. A URL without a path means `/metrics`."""
    scheme, _, rest = url.partition("://")
    return url if rest.rstrip("/").partition("/")[2] else f"{scheme}://{rest.rstrip('/')}/metrics"


MetricsUrl = Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+[^@#\s]*$"), AfterValidator(_page)]
"""URL of a page in Prometheus' text format; without a path, `/metrics`."""
Sources = Annotated[tuple[MetricsUrl, ...], Field(max_length=MAX_SOURCES)]


class ClusterExporters(Model):
    """DCGM exporters of a cluster, with labels that show which pod uses which GPU."""

    namespace: Annotated[str, Field(min_length=1)]
    labels: Annotated[dict[str, str], Field(min_length=1)]
    port: Annotated[int, Field(gt=0, le=65_535)]
    pages: Annotated[Sources, Field(min_length=1)]
    """URLs of the exporters on nodes where the target's pods may run."""
    host_network: bool = False
    """Whether the exporters use the addresses of their nodes, which NetworkPolicies can only name
    by range."""
    users_namespace: str = ""
    """Namespace of the target's pods; empty: the stack's own."""
    users: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the target's pods, or `deployment/NAME` for those of a Deployment. Only the GPUs
    that they use are read."""

    @model_validator(mode="after")
    def _policies_can_name_them(self) -> Self:
        for url in self.pages if self.host_network else ():
            host = address_of(url).host
            try:
                ipaddress.ip_address(host)
            except ValueError as error:
                raise ValueError(
                    f"{{host_network}} needs the address of a node in {{pages}}, not {host!r}: "
                    "NetworkPolicies need addresses"
                ) from error
        return self


ALL_GPUS = "all"
NVML_URL = "nvml://localhost"
"""Source name for the GPUs of this machine, beside the URLs of pages."""
GpuName = Annotated[str, Field(pattern=r"^(all|\d{1,3}|GPU-[0-9a-fA-F-]+)$")]
"""`all`, or the index or UUID of a GPU as `nvidia-smi -L` lists it."""

PAGE_LISTS = {"server_metrics": False, "gpu_telemetry": True}
"""Keys with lists of pages, and whether they are pages of GPU exporters."""


class NamedPage(NamedTuple):
    """A page that the user configured."""

    key: str
    """Key of its list, below `telemetry`."""
    url: str
    is_gpu: bool


class PoolPages(Model):
    """Pages of metrics of the pods of a release's pool."""

    name: str
    """Name of the pool."""
    url: MetricsUrl
    """URL whose host has the addresses of all its pods."""


class Telemetry(Model):
    """Pages that are read during a run. A page that fails is reported and never fails the run."""

    target: bool = True
    """Read `/metrics` of the target's own host too, if it exists."""
    server_metrics: Sources = ()
    """Additional Prometheus pages of servers to read during the run, such as those of the replicas
    behind a router."""
    gpu_telemetry: Sources = ()
    """Pages of GPU exporters to read during the run: DCGM's, AMD's, or that of `aiperf-svc
    nvml-exporter`."""
    nvml: Annotated[tuple[GpuName, ...], Field(max_length=MAX_SOURCES)] = ()
    """GPUs of this machine to read through NVML during the run, without an exporter: `all`, or
    indexes and UUIDs. Name the GPUs that the server uses."""
    key_env: Annotated[str, Field(min_length=1)] | None = None
    """Environment variable with the credentials for these pages: a token, or `USER:PASSWORD`. No
    other server receives it."""
    find_gpus: bool = True
    """On a cluster, find the DCGM exporters of the nodes on which the target's pods use GPUs, if
    `gpu_telemetry` names none."""
    exporters: tuple[ClusterExporters, ...] = ()
    """The exporters found. Filled in by `run`."""
    pools: tuple[PoolPages, ...] = ()
    """Pages of the pools of a release. Filled in from `deployment.target.pools`."""
    interval: PositiveDurationNs = SECOND_NS
    """Time between two reads of a page."""

    @property
    def named_pages(self) -> tuple[NamedPage, ...]:
        """All pages that the user configured, by list."""
        return tuple(
            NamedPage(key, url, is_gpu)
            for key, is_gpu in PAGE_LISTS.items()
            for url in getattr(self, key)
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.key_env is not None and not self.named_pages:
            raise ValueError(
                "{key_env} is for pages that are named; give {server_metrics} or {gpu_telemetry}"
            )
        if twice := repeated(self.nvml):
            raise ValueError(f"{{nvml}}: {twice!r} is given twice; give each GPU once")
        if ALL_GPUS in self.nvml and len(self.nvml) > 1:
            raise ValueError(f"{{nvml}}: {ALL_GPUS} includes the others; leave them out")
        if self.interval < SECOND_NS // 10:
            raise ValueError(
                f"{{interval}} {format_duration(self.interval)} is below 100ms: reading would load "
                "the server"
            )
        return self
