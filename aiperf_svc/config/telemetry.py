"""Settings of telemetry: what the server and its GPUs report while a run goes."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model
from aiperf_svc.config.units import PositiveDurationNs

MAX_SOURCES = 64


def _page(url: str) -> str:
    """The page's URL: that of a server means its `/metrics`."""
    scheme, _, rest = url.partition("://")
    return url if rest.rstrip("/").partition("/")[2] else f"{scheme}://{rest.rstrip('/')}/metrics"


MetricsUrl = Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+[^@#\s]*$"), AfterValidator(_page)]
"""URL of a page in Prometheus' text format; without a path, `/metrics`."""
Sources = Annotated[tuple[MetricsUrl, ...], Field(max_length=MAX_SOURCES)]


class Telemetry(Model):
    """Pages that are read while a run goes. A page that fails is named and never fails the run."""

    target: bool = True
    """Whether to read `/metrics` of the target's own host too, if it is there. On a cluster, the
    pod that reads it must be allowed to reach the target."""
    server_metrics: Sources = ()
    """Further pages of servers, such as the replicas behind a router."""
    gpu_telemetry: Sources = ()
    """Pages of DCGM exporters."""
    interval: PositiveDurationNs = SECOND_NS
    """Time between two reads of a page."""

    @model_validator(mode="after")
    def _is_not_too_often(self) -> Self:
        if self.interval < SECOND_NS // 10:
            raise ValueError("{interval} is below 100ms: reading would load the server")
        return self
