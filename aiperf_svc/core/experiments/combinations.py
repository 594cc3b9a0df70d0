"""Trials of the same parameters, and the mean of each value over them."""

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from aiperf_svc.core.compare import student
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.outcomes import DONE, Measured, TrialOutcome
from aiperf_svc.core.qualify.measurements import Measurement
from aiperf_svc.core.verdict.check_result import is_failure
from aiperf_svc.domain.json_objects import Parameters


@dataclass(frozen=True, slots=True)
class Parameter:
    """A key of the config that differs between trials."""

    name: str
    values: tuple[Any, ...]
    """Numbers by size, anything else in the order of the trials."""

    @property
    def is_number(self) -> bool:
        """True if it can be an axis of a plot."""
        return all(map(is_number, self.values))


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial, without its numbers."""

    outcome: TrialOutcome
    measured: Measured | None
    """None when nothing was measured."""
    measurements: tuple[Measurement, ...] = ()
    """What it measured of nodes; empty unless it is of a qualification."""
    length_s: float = 0.0
    """From the start of its load to the end."""
    end_wall_ns: int = 0

    @property
    def number(self) -> int:
        return self.outcome.trial.number

    @property
    def left_out(self) -> str:
        """Why its numbers are not used; empty if they are."""
        if self.outcome.state != DONE:
            return f"{self.outcome.state}: {self.outcome.reason}".removesuffix(": ")
        if self.measured is None:
            return "nothing was measured"
        if not self.measured.is_usable:
            return self.measured.label
        return ""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value over the repetitions of a combination."""

    n: int
    mean: float
    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    sd: float | None
    """Standard deviation of the sample; None for a single run."""

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None for a single run."""
        return None if self.sd is None else self.sd / math.sqrt(self.n)

    @property
    def half_width(self) -> float | None:
        """Half of the mean's 95% interval; None for a single run."""
        error = self.error
        return None if error is None else error * student.quantile(self.n - 1)


@dataclass(frozen=True, slots=True)
class Combination:
    """The trials of the same parameters."""

    parameters: Parameters
    rows: tuple[TrialRow, ...]
    values: dict[RowKey, Aggregate]

    @property
    def left_out(self) -> tuple[TrialRow, ...]:
        """Trials whose numbers are not used."""
        return tuple(row for row in self.rows if row.left_out)

    @property
    def has_failed(self) -> bool:
        """True if the target, or a step of a tool, failed in a trial: its means are of the others,
        which show it as better than it is."""
        return any(is_failure(row.measured.cause) for row in self.rows if row.measured is not None)

    def mean(self, key: RowKey) -> float | None:
        """Return the mean of a value, None if it is not known."""
        found = self.values.get(key)
        return None if found is None else found.mean


def is_number(value: Any) -> bool:
    """True for a finite number that is not a switch."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def identity(parameters: Parameters) -> bytes:
    """Return what is the same for the same parameters, in any order."""
    return msgspec.json.encode(parameters, order="deterministic")
