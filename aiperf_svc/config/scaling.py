"""Settings for watching a server whose replicas follow the load."""

import re
from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.target import TargetPods


class Scaling(Model):
    """Record when replicas of the server are desired, created, ready and serving, as the cluster
    reports it. This tool does not scale anything itself."""

    pods: TargetPods | None = None
    """Pods of the server, and the port of their metrics page. Default: the pods of the stack's own
    target; for a release, those of its only pool with a port; otherwise those of
    `deployment.target.pods`, which are found by the Service of the URL."""
    metrics_path: Annotated[str, Field(pattern=r"^/")] = "/metrics"
    """Metrics page of each pod. Its counter of generated tokens shows the first token."""
    loaded: Annotated[str, Field(min_length=1)] | None = None
    """Regular expression of the line of a pod's log that shows that its model is loaded."""

    @model_validator(mode="after")
    def _has_an_expression(self) -> Self:
        if self.loaded is not None:
            try:
                re.compile(self.loaded)
            except re.error as error:
                raise ValueError(f"{{loaded}}: {self.loaded!r}: {error}") from error
        return self
