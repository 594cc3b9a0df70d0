"""The objectives of a run, and the limits of a good request."""

from typing import Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import Share


class Objective(Model):
    """A limit on one statistic of one metric; the unit is the metric's, durations take units."""

    metric: str
    stat: Literal["avg", "min", "max", "p50", "p75", "p90", "p95", "p99"] = "avg"
    max: float | str | None = None
    min: float | str | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.max is None and self.min is None:
            raise ValueError("an objective needs {max} or {min}")
        return self


class Slo(Model):
    """Objectives of the run (exit code 4 if one fails), and the limits of a good request."""

    objectives: tuple[Objective, ...] = ()
    goodput: dict[str, float | str] = Field(default_factory=dict)
    """Maps a metric tag to the highest value of a good request."""
    error_budget: Share = 0.01
    """Share of the requests that may fail, be cut off or stay unsent. Above it every objective on a
    metric of successful requests fails."""
