"""The files of an experiment: `experiment.json`, `experiment.csv` and `experiment.parquet`.

In the tables, a row is a trial, and a column is a parameter or a statistic of a metric with
AIPerf's name: `time_to_first_token_p99`.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from arro3.core import Array, DataType, Field
from msgspec.structs import asdict

from aiperf_svc import __version__
from aiperf_svc.adapters.exports.experiment_file import search_json
from aiperf_svc.adapters.exports.file_content import csv_file
from aiperf_svc.adapters.exports.parquet_export import write_table
from aiperf_svc.config.workload import Config
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import Best, Front, best_of, front
from aiperf_svc.core.experiments.combinations import Aggregate, Combination, Parameter, TrialRow
from aiperf_svc.core.experiments.experiment_result import (
    SCHEMA,
    BestResult,
    CombinationResult,
    ExperimentNumbers,
    ExperimentResult,
    FrontResult,
    LeftOut,
    MeanValue,
    ParameterValues,
    ShownMetric,
    TrialResult,
)
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.verdict.check_result import Reason
from aiperf_svc.domain.foreign_text import csv_cell
from aiperf_svc.domain.json_objects import json_text
from aiperf_svc.workloads.registry import workload_of

FORMAT = "1"
"""Version of the format of experiment.parquet."""
AGGREGATED = ("avg", "min", "max", "p50", "p90", "p95", "p99", "p99_9")
"""Statistics with a mean over the repetitions in experiment.json. The trials and AIPerf's files
have all statistics."""
FACTS: tuple[tuple[str, Callable[[TrialRow], str]], ...] = (
    ("state", lambda row: row.outcome.state),
    ("reason", lambda row: row.outcome.reason),
    ("verdict", lambda row: row.measured.verdict if row.measured else ""),
    ("cause", lambda row: row.measured.cause if row.measured else ""),
    ("checks", lambda row: _names(row.measured.reasons) if row.measured else ""),
    ("slo", lambda row: row.measured.slo if row.measured else ""),
    ("system", lambda row: _names(row.measured.system) if row.measured else ""),
    ("run_id", lambda row: row.measured.run_id if row.measured else ""),
    ("folder", lambda row: row.outcome.folder),
)
"""Columns between the parameters and the metrics."""


def _names(reasons: Iterable[Reason]) -> str:
    return ", ".join(each.check for each in reasons)


def column_name(key: RowKey) -> str:
    """Return AIPerf's name of a statistic."""
    return f"{key.tag}_{key.stat}"


def render_progress(
    trials: Sequence[msgspec.Raw], config: Config, search: SearchReport | None
) -> bytes:
    """Render experiment.json of an unfinished experiment from its finished trials, each rendered by
    `render_trial`. It has no experiment-level results."""
    content = {
        "schema_version": SCHEMA,
        "version": __version__,
        "name": config.name,
        "search": search_json(search),
        "trials": trials,
        "config": config.model_dump(mode="json"),
    }
    return msgspec.json.encode(content) + b"\n"


def render_trial(row: TrialRow) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_trial(row)))


def experiment_result(
    summary: ExperimentSummary, config: Config, search: SearchReport | None
) -> ExperimentResult:
    """Return the results of an experiment: the trials, the combinations with their means, and the
    best combinations."""
    numbers = experiment_numbers(summary, search)
    return ExperimentResult(
        version=__version__,
        name=config.name,
        search=search,
        qualification=workload_of(config).qualification(config, summary.rows),
        config=config.model_dump(mode="json"),
        **asdict(numbers),
    )


def experiment_numbers(
    summary: ExperimentSummary, search: SearchReport | None = None
) -> ExperimentNumbers:
    """Return the trials and their combined numbers."""
    found = front(summary)
    return ExperimentNumbers(
        parameters=tuple(ParameterValues(p.name, p.values) for p in summary.parameters),
        metrics={
            tag: ShownMetric(info.name, info.unit, info.better)
            for tag, info in summary.metrics.items()
        },
        best=tuple(map(_best, best_of(summary, search))),
        front=None if found is None else _front(found),
        combinations=tuple(map(combination_result, summary.combinations)),
        trials=tuple(map(_trial, summary.rows)),
    )


def render_csv(summary: ExperimentSummary) -> bytes:
    """Render experiment.csv. An unknown number is an empty cell."""
    names = [each.name for each in summary.parameters]
    rows = (csv_row(row, names, summary.keys) for row in summary.rows)
    return csv_file([csv_head(names, summary.keys), *rows])


def csv_head(parameters: Iterable[str], keys: Iterable[RowKey]) -> tuple[str, ...]:
    facts = [name for name, _ in FACTS]
    names = map(csv_cell, parameters)
    return ("number", "repetition", *names, *facts, *map(column_name, keys))


def csv_row(row: TrialRow, parameters: Iterable[str], keys: Iterable[RowKey]) -> tuple[Any, ...]:
    trial, values = row.outcome.trial, row.measured.values if row.measured else {}
    return (
        trial.number,
        trial.repetition,
        *(parameter_cell(trial.parameters.get(name)) for name in parameters),
        *(csv_cell(read(row)) for _, read in FACTS),
        *(values.get(key, "") for key in keys),
    )


def write_parquet(path: Path, summary: ExperimentSummary) -> None:
    """Write experiment.parquet. Raises OSError."""
    rows = summary.rows
    fields, arrays = list[Field](), list[Array]()

    def add(name: str, kind: DataType, values: list[Any], unit: str = "") -> None:
        fields.append(Field(name, kind, nullable=True, metadata={"unit": unit} if unit else None))
        arrays.append(Array(values, kind))

    add("number", DataType.int64(), [row.number for row in rows])
    add("repetition", DataType.int64(), [row.outcome.trial.repetition for row in rows])
    for parameter in summary.parameters:
        add(parameter.name, *_parameter_column(parameter, rows))
    for name, read in FACTS:
        add(name, DataType.string(), [read(row) for row in rows])
    for key in summary.keys:
        values = [row.measured.values.get(key) if row.measured else None for row in rows]
        add(column_name(key), DataType.float64(), values, summary.metrics[key.tag].unit)
    metadata = {"aiperf_svc.format": FORMAT, "aiperf_svc.version": __version__}
    write_table(path, fields, [arrays], metadata)


def interval(value: Aggregate) -> tuple[float, float] | None:
    """Return the 95% interval of the mean; None for a single run."""
    half = value.half_width
    return None if half is None else (value.mean - half, value.mean + half)


def _parameter_column(
    parameter: Parameter, rows: tuple[TrialRow, ...]
) -> tuple[DataType, list[Any]]:
    values = [row.outcome.trial.parameters.get(parameter.name) for row in rows]
    if parameter.is_number:
        return DataType.float64(), values
    return DataType.string(), [None if value is None else json_text(value) for value in values]


def _trial(row: TrialRow) -> TrialResult:
    outcome, measured = row.outcome, row.measured
    return TrialResult(
        number=outcome.trial.number,
        repetition=outcome.trial.repetition,
        parameters=outcome.trial.parameters,
        **{name: read(row) for name, read in FACTS},
        left_out=row.left_out,
        replaced=outcome.replaced,
        values={column_name(key): v for key, v in measured.values.items()} if measured else {},
    )


def combination_result(each: Combination) -> CombinationResult:
    """Return the means of one combination over its repetitions."""
    return CombinationResult(
        parameters=each.parameters,
        trials=tuple(row.number for row in each.rows),
        left_out=tuple(LeftOut(row.number, row.left_out) for row in each.left_out),
        values={
            column_name(key): _mean(value)
            for key, value in each.values.items()
            if key.stat in AGGREGATED
        },
    )


def _mean(value: Aggregate) -> MeanValue:
    low, high = interval(value) or (None, None)
    return MeanValue(n=value.n, mean=value.mean, sd=value.sd, ci_low=low, ci_high=high)


def _best(each: Best) -> BestResult:
    return BestResult(
        metric=column_name(each.key),
        parameters=each.combination.parameters,
        **asdict(_mean(each.value)),
        overlaps=tuple(rival.parameters for rival in each.rivals),
    )


def _front(found: Front) -> FrontResult:
    return FrontResult(
        throughput=column_name(found.throughput),
        latency=column_name(found.latency),
        optimal=tuple(each.parameters for each in found.optimal),
    )


def parameter_cell(value: Any) -> str:
    """Format a parameter's value for a table; empty if the trial does not set it. A negative number
    is not escaped as a formula."""
    if value is None:
        return ""
    return json_text(value) if isinstance(value, int | float) else csv_cell(json_text(value))
