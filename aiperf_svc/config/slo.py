"""The objectives of a run, and the limits of a good request."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import Share

Bound = Literal["max", "min"]


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

    @property
    def bounds(self) -> list[tuple[Bound, float | str]]:
        """The limits that are set."""
        found: list[tuple[Bound, float | str]] = []
        found += [("max", self.max)] if self.max is not None else []
        found += [("min", self.min)] if self.min is not None else []
        return found


TierName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")]


class Slo(Model):
    """Objectives of the run (exit code 4 if one fails), and the limits of a good request."""

    objectives: tuple[Objective, ...] = ()
    """Limits that must hold. Otherwise the exit code is 4, or 9 if one cannot be judged."""
    goodput: dict[str, float | str] = Field(default_factory=dict)
    """Maximum value of each metric in a good request."""
    goodput_tiers: dict[TierName, Annotated[dict[str, float | str], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    """Additional named sets of such limits. Each has its own goodput."""
    error_budget: Share = 0.01
    """Share of the requests that may fail, be cut off or stay unsent. Above it, every objective on
    a metric of successful requests fails."""
