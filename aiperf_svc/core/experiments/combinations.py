"""Trials with the same parameters, and the mean of each value over them."""

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
    """Numbers in ascending order, other values in the order of the trials."""

    @property
    def is_number(self) -> bool:
        """True if it can be the axis of a plot."""
        return all(map(is_number, self.values))


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial, without its numbers."""

    outcome: TrialOutcome
    measured: Measured | None
    """None if nothing was measured."""
    measurements: tuple[Measurement, ...] = ()
    """Its measurements of nodes; empty unless it belongs to a qualification."""
    length_s: float = 0.0
    """Seconds from the start of its load to the end."""
    end_wall_ns: int = 0

    @property
    def number(self) -> int:
        return self.outcome.trial.number

    @property
    def left_out(self) -> str:
        """Reason for excluding its numbers; empty if they count."""
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
    """Trials with the same parameters."""

    parameters: Parameters
    rows: tuple[TrialRow, ...]
    values: dict[RowKey, Aggregate]

    @property
    def left_out(self) -> tuple[TrialRow, ...]:
        """Trials whose numbers are excluded."""
        return tuple(row for row in self.rows if row.left_out)

    @property
    def has_failed(self) -> bool:
        """True if the target or a tool's step failed in a trial. Its means exclude that trial and
        are therefore too good."""
        return any(is_failure(row.measured.cause) for row in self.rows if row.measured is not None)

    def mean(self, key: RowKey) -> float | None:
        """Return the mean of a value; None if unknown."""
        found = self.values.get(key)
        return None if found is None else found.mean


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def identity(parameters: Parameters) -> bytes:
    """Return bytes that are equal for equal parameters in any order."""
    return msgspec.json.encode(parameters, order="deterministic")
