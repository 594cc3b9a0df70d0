"""The files that AIPerf 0.13 writes for several runs, readable by its tools and notebooks: the
aggregate of each combination over its repetitions, and the sweep over all combinations.

Keys have AIPerf's names and meanings. A combination with one run has no deviation and no interval;
AIPerf writes 0 and the mean. The JSON Schemas are generated from the structs.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from aiperf_svc import __version__
from aiperf_svc.adapters.exports.aiperf_exports import csv_number
from aiperf_svc.adapters.exports.experiment_export import column_name, interval, parameter_cell
from aiperf_svc.adapters.exports.file_content import csv_file
from aiperf_svc.core.compare import student
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.compare.student import CONFIDENCE
from aiperf_svc.core.experiments.choices import LATENCIES, REQUEST_THROUGHPUT, Front, best, front
from aiperf_svc.core.experiments.combinations import Aggregate, Combination, Parameter, TrialRow
from aiperf_svc.core.experiments.experiment_result import ParameterValues
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.experiments.trials import describe
from aiperf_svc.domain.foreign_text import csv_cell
from aiperf_svc.domain.json_objects import Parameters, json_text
from aiperf_svc.domain.metric_catalog import CATALOG

AGGREGATE_SCHEMA = "1.0"
SWEEP_STATS = ("mean", "std", "min", "max", "cv")
AGGREGATE_STATS = (*SWEEP_STATS, "se", "ci_low", "ci_high", "t_critical")
_FINE = ("cv", "se", "t_critical")
"""Columns with four decimals, as in AIPerf; the others have two."""
MAX_NAME_LENGTH = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


class FailedRun(msgspec.Struct, frozen=True):
    """An unused trial with the reason."""

    label: str
    error: str


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of trials, and of trials that are used."""

    aggregation_type: str
    num_profile_runs: int
    num_successful_runs: int
    failed_runs: tuple[FailedRun, ...]


class AggregateStats(msgspec.Struct, frozen=True, kw_only=True):
    """A value over the repetitions of a combination. A single run has only mean, min and max. `cv`,
    the deviation divided by the mean, is also left out if the mean is 0."""

    mean: float
    min: float
    max: float
    std: float | UnsetType = UNSET
    se: float | UnsetType = UNSET
    ci_low: float | UnsetType = UNSET
    ci_high: float | UnsetType = UNSET
    t_critical: float | UnsetType = UNSET
    cv: float | UnsetType = UNSET
    unit: str


class AggregateMetadata(RunCounts, frozen=True, kw_only=True):
    """The runs of one combination, and its parameters."""

    confidence_level: float = CONFIDENCE
    run_labels: tuple[str, ...]
    variation_label: str
    variation_values: Parameters


class AggregateFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of profile_export_aiperf_aggregate.json: a key of `metrics` is a metric and a
    statistic, such as `time_to_first_token_p99`."""

    schema_version: str = AGGREGATE_SCHEMA
    aiperf_version: str
    metadata: AggregateMetadata
    metrics: dict[str, AggregateStats]


class SweepMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The changed keys with their values."""

    sweep_parameters: tuple[ParameterValues, ...]
    num_combinations: int


class CombinationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A combination with at least one usable run."""

    parameters: Parameters
    metrics: dict[str, AggregateStats]


class Configuration(msgspec.Struct, frozen=True):
    """The best combination for a metric."""

    parameters: Parameters
    metric: float
    unit: str


class SweepFile(RunCounts, frozen=True, kw_only=True):
    """Content of profile_export_aiperf_sweep.json."""

    metadata: SweepMetadata
    per_combination_metrics: tuple[CombinationMetrics, ...]
    best_configurations: dict[str, Configuration]
    pareto_optimal: tuple[Parameters, ...]


def combination_names(summary: ExperimentSummary) -> list[str]:
    """Return AIPerf's folder name of each combination, `concurrency_4__mean_128`; its number if the
    name is not unique or too long. Empty without parameters."""
    names = [_name(each.parameters) for each in summary.combinations]
    return [
        name if names.count(name) == 1 and len(name) <= MAX_NAME_LENGTH else f"combination_{at:04}"
        for at, name in enumerate(names, 1)
    ]


def render_aggregate_json(summary: ExperimentSummary, of: Combination) -> bytes:
    """Render profile_export_aiperf_aggregate.json of one combination."""
    failed = _failed(of.rows)
    content = AggregateFile(
        aiperf_version=f"aiperf-svc {__version__}",
        metadata=AggregateMetadata(
            aggregation_type="confidence",
            num_profile_runs=len(of.rows),
            num_successful_runs=len(of.rows) - len(failed),
            failed_runs=failed,
            run_labels=tuple(run_label(row.number) for row in of.rows if not row.left_out),
            variation_label=describe(of.parameters),
            variation_values=of.parameters,
        ),
        metrics=_metrics(summary, of),
    )
    return msgspec.json.encode(content) + b"\n"


def render_aggregate_csv(summary: ExperimentSummary, of: Combination) -> bytes:
    """Render profile_export_aiperf_aggregate.csv of one combination."""
    lines: list[Sequence[object]] = [("metric", *AGGREGATE_STATS, "unit")]
    for key, value in of.values.items():
        found = _statistics(value)
        cells = (_number(key, found.get(stat), stat) for stat in AGGREGATE_STATS)
        lines.append((column_name(key), *cells, csv_cell(_unit(summary, key))))
    lines += [
        (),
        ("Aggregation Type", "confidence"),
        ("Total Runs", len(of.rows)),
        ("Successful Runs", len(of.rows) - len(of.left_out)),
        ("Confidence Level", CONFIDENCE),
    ]
    return csv_file(lines)


def render_sweep_json(summary: ExperimentSummary, search: SearchReport | None = None) -> bytes:
    """Render profile_export_aiperf_sweep.json."""
    failed = _failed(summary.rows)
    content = SweepFile(
        aggregation_type="sweep",
        num_profile_runs=len(summary.rows),
        num_successful_runs=len(summary.rows) - len(failed),
        failed_runs=failed,
        metadata=SweepMetadata(
            sweep_parameters=tuple(ParameterValues(p.name, p.values) for p in summary.parameters),
            num_combinations=len(summary.combinations),
        ),
        per_combination_metrics=tuple(
            CombinationMetrics(parameters=each.parameters, metrics=_metrics(summary, each))
            for each in summary.combinations
            if each.values
        ),
        best_configurations=_best_configurations(summary, search),
        pareto_optimal=tuple(each.parameters for each in _optimal(summary)),
    )
    return msgspec.json.encode(content) + b"\n"


def render_sweep_csv(summary: ExperimentSummary, search: SearchReport | None = None) -> bytes:
    """Render profile_export_aiperf_sweep.csv: four tables with an empty line between them."""
    names = [csv_cell(each.name) for each in summary.parameters]
    keys = sorted(summary.keys, key=column_name)
    columns = [f"{column_name(key)}_{stat}" for key in keys for stat in SWEEP_STATS]
    lines: list[Sequence[object]] = [(*names, *columns)]
    for each in summary.combinations:
        if each.values:
            cells = _values(each.parameters, summary.parameters)
            lines.append((*cells, *_sweep_numbers(each, keys)))
    lines += [(), ("Best Configurations",)]
    best_ones = _best_configurations(summary, search)
    if best_ones:
        lines.append(("Configuration", *names, "Metric", "Unit"))
    for name, found in best_ones.items():
        cells = _values(found.parameters, summary.parameters)
        shown = name.replace("_", " ").title()
        lines.append((shown, *cells, f"{found.metric:.2f}", csv_cell(found.unit)))
    optimal = _optimal(summary)
    lines += [(), ("Pareto Optimal Points",), names if optimal else ("None",)]
    lines += [_values(each.parameters, summary.parameters) for each in optimal]
    lines += [
        (),
        ("Metadata",),
        ("Field", "Value"),
        ("Aggregation Type", "sweep"),
        ("Sweep Parameters", ", ".join(names)),
        ("Number of Combinations", len(summary.combinations)),
        ("Number of Profile Runs", len(summary.rows)),
        ("Number of Successful Runs", len(summary.rows) - len(summary.left_out)),
    ]
    return csv_file(lines)


def run_label(number: int) -> str:
    """Return the name of a trial's link in `profile_runs`."""
    return f"run_{number:04}"


def _failed(rows: Sequence[TrialRow]) -> tuple[FailedRun, ...]:
    return tuple(FailedRun(run_label(row.number), row.left_out) for row in rows if row.left_out)


def _metrics(summary: ExperimentSummary, of: Combination) -> dict[str, AggregateStats]:
    return {
        column_name(key): AggregateStats(**_statistics(value), unit=_unit(summary, key))
        for key, value in of.values.items()
    }


def _unit(summary: ExperimentSummary, key: RowKey) -> str:
    """Return the unit in AIPerf's files."""
    return CATALOG[key.tag].unit if key.tag in CATALOG else summary.metrics[key.tag].unit


def _statistics(value: Aggregate) -> dict[str, float]:
    found = {"mean": value.mean, "min": value.low, "max": value.high}
    if value.sd is not None and value.error is not None:
        low, high = interval(value) or (value.mean, value.mean)
        found |= {
            "std": value.sd,
            "se": value.error,
            "ci_low": low,
            "ci_high": high,
            "t_critical": student.quantile(value.n - 1),
        }
        if value.mean:
            found["cv"] = value.sd / value.mean
    return found


def _sweep_numbers(each: Combination, keys: Iterable[RowKey]) -> Iterable[str]:
    for key in keys:
        value = each.values.get(key)
        found = {} if value is None else _statistics(value)
        yield from (_number(key, found.get(stat), stat) for stat in SWEEP_STATS)


def _best_configurations(
    summary: ExperimentSummary, search: SearchReport | None
) -> dict[str, Configuration]:
    found = _front(summary)
    if found is None:
        return {}
    chosen = {
        "best_throughput": best(summary, found.throughput, search),
        "best_latency_p99": best(summary, found.latency, search),
    }
    return {
        name: Configuration(each.combination.parameters, each.value.mean, _unit(summary, each.key))
        for name, each in chosen.items()
        if each is not None
    }


def _front(summary: ExperimentSummary) -> Front | None:
    found = front(summary, throughputs=(REQUEST_THROUGHPUT,))
    return found if found is not None and found.latency in LATENCIES else None


def _optimal(summary: ExperimentSummary) -> tuple[Combination, ...]:
    found = _front(summary)
    return () if found is None else found.optimal


def _values(own: Parameters, parameters: Sequence[Parameter]) -> list[str]:
    return [parameter_cell(own.get(each.name)) for each in parameters]


def _name(parameters: Parameters) -> str:
    parts = (f"{key.rpartition('.')[2]}_{json_text(value)}" for key, value in parameters.items())
    return _UNSAFE.sub("_", "__".join(parts))


def _number(key: RowKey, value: float | None, stat: str) -> str:
    return csv_number(key.tag, value, 4 if stat in _FINE else 2)
