"""The files of an experiment: `experiment.json`, `experiment.csv` and `experiment.parquet`.

In the tables a row is a trial, and a column is a parameter, or a statistic of a metric by AIPerf's
name for it: `time_to_first_token_p99`.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader, Schema

from aiperf_svc import __version__
from aiperf_svc.adapters.exports.experiment_file import SCHEMA
from aiperf_svc.adapters.exports.parquet_export import write_stream
from aiperf_svc.config.workload import Config
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import Best, Front, best_of, front
from aiperf_svc.core.experiments.combinations import Aggregate, Combination, Parameter, TrialRow
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.domain.foreign_text import csv_cell

FORMAT = "1"
"""Version of the format of experiment.parquet."""
AGGREGATED = ("avg", "min", "max", "p50", "p90", "p95", "p99", "p99_9")
"""Statistics that have a mean over the repetitions in experiment.json. Those of the trials, and
AIPerf's files, have all."""
FACTS: tuple[tuple[str, Callable[[TrialRow], str]], ...] = (
    ("state", lambda row: row.outcome.state),
    ("reason", lambda row: row.outcome.reason),
    ("verdict", lambda row: row.measured.verdict if row.measured else ""),
    ("cause", lambda row: row.measured.cause if row.measured else ""),
    ("slo", lambda row: row.measured.slo if row.measured else ""),
    ("run_id", lambda row: row.measured.run_id if row.measured else ""),
    ("folder", lambda row: row.outcome.folder),
)
"""Columns between the parameters and the metrics."""


def column_name(key: RowKey) -> str:
    """Return AIPerf's name of a statistic."""
    return f"{key.tag}_{key.stat}"


def render_json(summary: ExperimentSummary, config: Config, search: SearchReport | None) -> bytes:
    """Render experiment.json."""
    return msgspec.json.encode(export(summary, config, search)) + b"\n"


def render_progress(
    trials: Sequence[msgspec.Raw], config: Config, search: SearchReport | None
) -> bytes:
    """Render experiment.json while trials are left, from the trials that have ended, each rendered
    by `render_trial`. Nothing is said of all trials together."""
    content = {
        **_head(config),
        "search": None if search is None else _search(search),
        "trials": trials,
        "config": config.model_dump(mode="json"),
    }
    return msgspec.json.encode(content) + b"\n"


def render_trial(row: TrialRow) -> msgspec.Raw:
    """Render a trial as it is in experiment.json."""
    return msgspec.Raw(msgspec.json.encode(_trial(row)))


def _head(config: Config) -> dict[str, Any]:
    return {"schema_version": SCHEMA, "version": __version__, "name": config.name}


def export(
    summary: ExperimentSummary, config: Config, search: SearchReport | None
) -> dict[str, Any]:
    """Return the content of experiment.json as an object: the trials, the combinations with their
    means, what is best."""
    return {
        **_head(config),
        "search": None if search is None else _search(search),
        **described(summary, search),
        "config": config.model_dump(mode="json"),
    }


def described(summary: ExperimentSummary, search: SearchReport | None = None) -> dict[str, Any]:
    """Return what is said of all trials together, and the trials, as a part of an object."""
    found = front(summary)
    return {
        "parameters": [{"name": p.name, "values": p.values} for p in summary.parameters],
        "metrics": {
            tag: {"name": info.name, "unit": info.unit, "better": info.better}
            for tag, info in summary.metrics.items()
        },
        "best": [_best(each) for each in best_of(summary, search)],
        "front": None if found is None else _front(found),
        "combinations": [_combination(each) for each in summary.combinations],
        "trials": [_trial(row) for row in summary.rows],
    }


def render_csv(summary: ExperimentSummary) -> bytes:
    """Render experiment.csv. An unknown number is an empty cell."""
    names = [each.name for each in summary.parameters]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(csv_head(names, summary.keys))
    writer.writerows(csv_row(row, names, summary.keys) for row in summary.rows)
    return text.getvalue().encode()


def csv_head(parameters: Iterable[str], keys: Iterable[RowKey]) -> tuple[str, ...]:
    """Return the names of the columns."""
    facts = [name for name, _ in FACTS]
    names = map(csv_cell, parameters)
    return ("number", "repetition", *names, *facts, *map(column_name, keys))


def csv_row(row: TrialRow, parameters: Iterable[str], keys: Iterable[RowKey]) -> tuple[Any, ...]:
    """Return the cells of a trial."""
    trial, values = row.outcome.trial, row.measured.values if row.measured else {}
    return (
        trial.number,
        trial.repetition,
        *(_text(trial.parameters.get(name)) for name in parameters),
        *(csv_cell(read(row)) for _, read in FACTS),
        *(values.get(key, "") for key in keys),
    )


def write_parquet(path: Path, summary: ExperimentSummary) -> None:
    """Write experiment.parquet. Raises OSError."""
    rows = summary.rows
    fields, arrays = [], []

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
    schema = Schema(fields)
    write_stream(
        path,
        RecordBatchReader.from_batches(schema, [RecordBatch.from_arrays(arrays, schema=schema)]),
        compression="zstd(3)",
        key_value_metadata={"aiperf_svc.format": FORMAT, "aiperf_svc.version": __version__},
    )


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
    return DataType.string(), [None if value is None else _text(value) for value in values]


def _trial(row: TrialRow) -> dict[str, Any]:
    trial = row.outcome.trial
    return {
        "number": trial.number,
        "repetition": trial.repetition,
        "parameters": trial.parameters,
        **{name: read(row) for name, read in FACTS},
        "left_out": row.left_out,
        "replaced": row.outcome.replaced,
        "values": {
            column_name(key): value
            for key, value in (row.measured.values if row.measured else {}).items()
        },
    }


def _combination(each: Combination) -> dict[str, Any]:
    return {
        "parameters": each.parameters,
        "trials": [row.number for row in each.rows],
        "left_out": [{"number": row.number, "reason": row.left_out} for row in each.left_out],
        "values": {
            column_name(key): _aggregate(value)
            for key, value in each.values.items()
            if key.stat in AGGREGATED
        },
    }


def _aggregate(value: Aggregate) -> dict[str, Any]:
    low, high = interval(value) or (None, None)
    return {"n": value.n, "mean": value.mean, "sd": value.sd, "ci_low": low, "ci_high": high}


def _best(each: Best) -> dict[str, Any]:
    return {
        "metric": column_name(each.key),
        "parameters": each.combination.parameters,
        **_aggregate(each.value),
        "overlaps": [rival.parameters for rival in each.rivals],
    }


def _front(found: Front) -> dict[str, Any]:
    return {
        "throughput": column_name(found.throughput),
        "latency": column_name(found.latency),
        "optimal": [each.parameters for each in found.optimal],
    }


def _search(search: SearchReport) -> dict[str, Any]:
    return {"result": search.result, **msgspec.structs.asdict(search)}


def _text(value: Any) -> str:
    """A parameter's value in a cell; empty if the trial does not set it."""
    if value is None:
        return ""
    return csv_cell(value if isinstance(value, str) else msgspec.json.encode(value).decode())
