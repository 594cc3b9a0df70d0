"""The summary of an experiment: a row for each trial, and the mean with an interval over the
repetitions of each combination of parameters.

The run is the sample, as in comparisons, because requests of one run do not show the noise between
runs. A combination counts the finished trials whose verdict is not `invalid`; the others are
listed. If one of these trials lacks a value, such as a percentile that lies among cut requests, the
value has no mean: a mean over the rest would favour the server.

The efficiency shows how a value scales with the number of processes that share the work. For n
processes it is the value divided by n times the value of one process. The trial with the fewest
processes replaces the single process, which may not have room for the work. Compared trials differ
only in the number of processes.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.combinations import (
    Aggregate,
    Combination,
    Parameter,
    TrialRow,
    identity,
    is_number,
)
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.experiments.outcomes import Measured, TrialOutcome, measured_in
from aiperf_svc.core.experiments.search import SearchedTrial
from aiperf_svc.core.qualify.measurements import STAGE, Measurement, measurements_of
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.domain.json_objects import Parameters
from aiperf_svc.domain.metric_formulas import Floats

EFFICIENCY = RowKey("parallel_efficiency", "avg")


def efficiency_info(scaled: MetricInfo) -> MetricInfo:
    """Describe the efficiency derived from a metric."""
    return MetricInfo(
        tag=EFFICIENCY.tag,
        name="Parallel efficiency",
        unit="ratio",
        formula=f"{scaled.tag} of each process, relative to that with the fewest processes",
    )


def with_efficiency(combinations: Sequence[Combination], scaled: MetricInfo) -> list[Combination]:
    """Return the combinations, with their efficiency if the number of processes varies."""
    groups: dict[bytes, list[Combination]] = {}
    for each in combinations:
        others = {n: v for n, v in each.parameters.items() if n not in scaled.scales_with}
        groups.setdefault(identity(others), []).append(each)
    found = {
        identity(parameters): efficiency
        for group in groups.values()
        for parameters, efficiency in _efficiencies(group, scaled)
    }
    return [
        replace(each, values={**each.values, EFFICIENCY: found[identity(each.parameters)]})
        if identity(each.parameters) in found
        else each
        for each in combinations
    ]


def _efficiencies(
    group: Sequence[Combination], scaled: MetricInfo
) -> Iterator[tuple[Parameters, Aggregate]]:
    key = RowKey(scaled.tag, "avg")
    known = [
        (processes, each)
        for each in group
        if each.mean(key)
        and (processes := _processes(each.parameters, scaled.scales_with)) is not None
    ]
    if len({processes for processes, _ in known}) < 2:
        return
    fewest, base = min(known, key=lambda each: each[0])
    for processes, each in known:
        if each is base:
            yield each.parameters, Aggregate(base.values[key].n, 1.0, 1.0, 1.0, None)
        else:
            factor = processes / fewest
            yield each.parameters, _relative(each.values[key], base.values[key], factor)


def _processes(parameters: Parameters, keys: Collection[str]) -> float | None:
    """Return the product of the keys' values. A key that no trial sets is the same for all. None if
    this trial uses the default of a key that others set, since that is unknown here."""
    values = [parameters.get(key, 1) for key in keys]
    return float(math.prod(values)) if all(map(is_number, values)) else None


def _relative(value: Aggregate, base: Aggregate, factor: float) -> Aggregate:
    """Divide a value by the base's value and the factor of processes, including both errors."""
    whole = base.mean * factor
    sd = None
    if value.sd is not None and base.sd is not None:
        sd = value.mean / whole * math.hypot(value.sd / value.mean, base.sd / base.mean)
    n = min(value.n, base.n)
    return Aggregate(n, value.mean / whole, value.low / whole, value.high / whole, sd)


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """The trials of an experiment, and their means: the input of its tables and files."""

    parameters: tuple[Parameter, ...]
    rows: tuple[TrialRow, ...]
    keys: tuple[RowKey, ...]
    """Every value that at least one trial has."""
    metrics: dict[str, MetricInfo]
    headline: tuple[RowKey, ...]
    combinations: tuple[Combination, ...]

    @property
    def left_out(self) -> tuple[TrialRow, ...]:
        """Trials whose numbers are excluded."""
        return tuple(row for row in self.rows if row.left_out)

    def rows_with_slo(self, outcome: str) -> tuple[TrialRow, ...]:
        """Return the counted trials whose SLO has this outcome, such as `missed`."""
        return tuple(
            row
            for row in self.rows
            if not row.left_out and row.measured and row.measured.slo == outcome
        )


def row_of(outcome: TrialOutcome) -> TrialRow:
    """Return the row of a trial, with the part of its results that summaries need."""
    results = outcome.results
    if results is None:
        return TrialRow(outcome, None)
    nodes: tuple[Measurement, ...] = ()
    if STAGE in outcome.trial.parameters and isinstance(results, ToolResult):
        nodes = measurements_of(results.steps, outcome.trial.parameters)
    length_s = (results.end_wall_ns - results.start_wall_ns) / 1e9
    return TrialRow(
        outcome._replace(results=None),
        measured_in(results),
        measurements=nodes,
        length_s=length_s,
        end_wall_ns=results.end_wall_ns,
    )


def finding_of(row: TrialRow, searched: SearchedTrial | None) -> Finding | None:
    """Return the data that decides which trial follows this one; None without results. `searched`
    is its result for a search."""
    measured = row.measured
    if measured is None:
        return None
    nodes = row.measurements
    return Finding(measured.verdict, measured.cause, searched, nodes, row.length_s)


class EndedTrials:
    """The finished trials of an experiment, each with its last attempt. Complete results would take
    100 KB each."""

    def __init__(self) -> None:
        self.by_number: dict[int, TrialRow] = {}

    def add(self, outcome: TrialOutcome) -> TrialRow:
        """Add a trial, replacing an earlier attempt at it."""
        before = self.by_number.get(outcome.trial.number)
        if before is not None:
            reason = before.left_out or "it failed for another target or cluster"
            outcome = outcome._replace(replaced=(*before.outcome.replaced, reason))
        row = self.by_number[outcome.trial.number] = row_of(outcome)
        return row

    @property
    def rows(self) -> list[TrialRow]:
        """The trials by number, which is the order of running."""
        return [self.by_number[number] for number in sorted(self.by_number)]


def summarise(outcomes: Iterable[TrialOutcome]) -> ExperimentSummary:
    return summarise_rows(map(row_of, outcomes))


def summarise_rows(rows: Iterable[TrialRow]) -> ExperimentSummary:
    """Summarise the trials so far, ordered by the values of their parameters."""
    rows = tuple(sorted(rows, key=lambda each: each.number))
    known = [row.measured for row in rows if row.measured is not None]
    keys = _in_order([list(each.values) for each in known])
    parameters = _parameters(rows)
    metrics = {tag: info for each in known for tag, info in each.metrics.items()}
    headline = _in_order([each.headline for each in known])
    combinations = [_combination(some) for some in _by_parameters(rows, parameters)]
    if scaled := next((info for info in metrics.values() if info.scales_with), None):
        combinations = with_efficiency(combinations, scaled)
        if any(EFFICIENCY in each.values for each in combinations):
            metrics[EFFICIENCY.tag] = efficiency_info(scaled)
            headline.insert(1, EFFICIENCY)
    return ExperimentSummary(
        parameters=parameters,
        rows=rows,
        keys=tuple(keys),
        metrics=metrics,
        headline=tuple(headline),
        combinations=tuple(combinations),
    )


def _in_order(lists: Iterable[Sequence[RowKey]]) -> list[RowKey]:
    """Merge lists with a common order. Keys of later lists follow their predecessors."""
    merged: list[RowKey] = []
    known: set[RowKey] = set()
    for each in lists:
        if known.issuperset(each):
            continue
        place = 0
        for key in each:
            if key in known:
                place = merged.index(key) + 1
            else:
                merged.insert(place, key)
                known.add(key)
                place += 1
    return merged


def _parameters(rows: Sequence[TrialRow]) -> tuple[Parameter, ...]:
    found: dict[str, dict[bytes, Any]] = {}
    for row in rows:
        for name, value in row.outcome.trial.parameters.items():
            found.setdefault(name, {})[msgspec.json.encode(value)] = value
    ordered = []
    for name, values in found.items():
        some = list(values.values())
        ordered.append(Parameter(name, tuple(sorted(some) if all(map(is_number, some)) else some)))
    return tuple(ordered)


def _by_parameters(
    rows: Sequence[TrialRow], parameters: Sequence[Parameter]
) -> list[list[TrialRow]]:
    found: dict[bytes, list[TrialRow]] = {}
    for row in rows:
        found.setdefault(identity(row.outcome.trial.parameters), []).append(row)
    places = {
        each.name: {msgspec.json.encode(value): at for at, value in enumerate(each.values)}
        for each in parameters
    }

    def place(some: list[TrialRow]) -> list[int]:
        own = some[0].outcome.trial.parameters
        return [
            places[each.name][msgspec.json.encode(own[each.name])] if each.name in own else -1
            for each in parameters
        ]

    return sorted(found.values(), key=place)


def _combination(rows: Sequence[TrialRow]) -> Combination:
    usable = [row.measured for row in rows if row.measured is not None and not row.left_out]
    return Combination(rows[0].outcome.trial.parameters, tuple(rows), _aggregates(usable))


def _aggregates(runs: Sequence[Measured]) -> dict[RowKey, Aggregate]:
    """Aggregate every value that all runs have."""
    if not runs:
        return {}
    keys = [key for key in runs[0].values if all(key in run.values for run in runs[1:])]
    table: Floats = np.array([[run.values[key] for key in keys] for run in runs])
    n = len(runs)
    columns = [table.mean(axis=0).tolist(), table.min(axis=0).tolist(), table.max(axis=0).tolist()]
    deviations = table.std(axis=0, ddof=1).tolist() if n > 1 else [None] * len(keys)
    numbers = zip(*columns, deviations, strict=True)
    return {key: Aggregate(n, *each) for key, each in zip(keys, numbers, strict=True)}
