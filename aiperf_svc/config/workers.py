"""The number of workers and record processors."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model


class Workers(Model):
    """The number of processes or pods that send the load."""

    min: Annotated[int, Field(gt=0, le=10_000)] = 1
    max: Annotated[int, Field(gt=0, le=10_000)] | None = None
    connections_per_worker: Annotated[int, Field(gt=0, le=60_000)] = 500
    """Users for each worker when the load is sized for a cluster."""
    record_processors: Annotated[int, Field(gt=0, le=10_000)] | None = None
    """Number of record processors. Default: a quarter of the workers."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"{{max}} {self.max} is below {{min}} {self.min}")
        return self
