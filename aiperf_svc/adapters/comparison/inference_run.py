"""Reads a run that measured an inference server: `profile_export_aiperf.json`, and
`records.parquet` where single requests are needed."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from arro3.io import read_parquet
from msgspec.structs import replace
from numpy.typing import NDArray

from aiperf_svc.adapters.exports.json_export import SCHEMA_VERSION, wall_ns
from aiperf_svc.adapters.exports.parquet_export import ROW_GROUP, check_records
from aiperf_svc.core.compare.estimates import batch_quantiles
from aiperf_svc.core.compare.measured_run import INFERENCE, MeasuredRun, RowKey, RunValue, flatten
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.stats.columns import PhaseRows, of_patient_clients
from aiperf_svc.core.stats.percentiles import QUANTILES
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind, Metric, Population
from aiperf_svc.domain.metric_formulas import Floats
from aiperf_svc.domain.outcomes import Phase

NAME = "profile_export_aiperf.json"
RECORDS = "records.parquet"
STATS = ("avg", "p50", "p90", "p99", "p99_9")
"""Statistics of a distribution that have a row."""
SHIFTS = ("p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99_9")
PLOTTED = ("time_to_first_token", "request_latency", "inter_token_latency")
HEADLINE = (
    *(RowKey(tag, stat) for tag in PLOTTED for stat in ("p50", "p99")),
    RowKey("request_throughput"),
    RowKey("output_token_throughput"),
    RowKey("request_error_rate"),
)
_SHARES = np.unique(np.concatenate((np.linspace(0, 1, 101), 1 - np.geomspace(1e-6, 1e-2, 41))))
_TOPOLOGY = ("layout", "workers", "record_processors", "raw_route")


def read(folder: Path) -> MeasuredRun:
    """Read the run in a folder, without its single requests. Raises ConfigError."""
    content = _content(folder / NAME)
    try:
        return _summary(folder, content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder / NAME}: not as this version writes it: {error!r}") from error


def with_requests(run: MeasuredRun, *, batches: bool, curves: bool) -> MeasuredRun:
    """Return the run with what needs all of its requests: its parts, or the distributions of the
    plotted metrics. Raises ConfigError."""
    wanted = {tag: CATALOG[tag] for tag in PLOTTED if tag in run.metrics}
    times, columns = _requests(Path(run.folder) / RECORDS, wanted)
    values, plotted = dict(run.values), {}
    for tag, column in columns.items():
        is_known = ~np.isnan(column)
        known = column[is_known]
        if batches:
            keys = [key for key in run.values if key.tag == tag and key.stat in QUANTILES]
            parts = batch_quantiles(times[is_known], known, [QUANTILES[key.stat] for key in keys])
            for key, part in zip(keys, parts, strict=True):
                values[key] = replace(values[key], batches=part)
        if curves and len(known):
            plotted[tag] = (_SHARES, np.quantile(known, _SHARES, method="nearest"))
    return replace(run, values=values, curves=plotted)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: broken: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: its schema is {version!r}, expected {SCHEMA_VERSION!r}; use the version that "
            "wrote it"
        )
    if "aiperf_svc" not in content:
        writer = f"AIPerf {content.get('aiperf_version', '')}".strip()
        raise ConfigError(f"{path}: written by {writer}, expected a run of aiperf-svc")
    found: dict[str, Any] = content
    return found


def _summary(folder: Path, content: dict[str, Any]) -> MeasuredRun:
    ours = content["aiperf_svc"]
    values: dict[RowKey, RunValue] = {}
    shifts: dict[str, dict[str, float]] = {}
    for metric in METRICS:
        measured = content.get(metric.tag)
        if measured is None:
            continue
        if metric.kind is Kind.SCALAR:
            values[RowKey(metric.tag)] = RunValue(float(measured["avg"]))
            continue
        for stat in STATS:
            if measured.get(stat) is not None:
                is_percentile = stat in QUANTILES and metric.kind is not Kind.TIMED
                count = int(measured["count"]) if is_percentile else 0
                values[RowKey(metric.tag, stat)] = RunValue(float(measured[stat]), count)
        if metric.tag in PLOTTED:
            known = {stat: measured.get(stat) for stat in SHIFTS}
            shifts[metric.tag] = {s: float(v) for s, v in known.items() if v is not None}
    topology = ours["topology"]
    facts = {"version": str(ours["version"]), "verdict": str(ours["verdict"])}
    if content["was_cancelled"]:
        facts["was_cancelled"] = "true"
    facts |= flatten({name: each for name, each in ours["config"].items() if name != "artifacts"})
    facts |= flatten({name: topology.get(name) for name in _TOPOLOGY}, "topology")
    # Trials have texts of their own, of the same lengths: that is no difference.
    is_own = facts.pop("dataset.variant", "none") != "none"
    built = topology.get("dataset") or {}
    facts["dataset.built"] = str(built.get("source_sha256" if is_own else "sha256") or "none")
    return MeasuredRun(
        folder=str(folder),
        run_id=str(content["benchmark_id"]),
        kind=INFERENCE,
        verdict=Severity(ours["verdict"]),
        cause=str(ours["cause"]),
        start_wall_ns=wall_ns(content["start_time"]),
        facts=facts,
        metrics={key.tag: _info(CATALOG[key.tag]) for key in values},
        values=values,
        headline=HEADLINE,
        shifts=shifts,
    )


def _info(metric: Metric) -> MetricInfo:
    better: Any = metric.better
    return MetricInfo(tag=metric.tag, name=metric.name, unit=metric.unit, better=better)


def _requests(
    path: Path, metrics: dict[str, Metric]
) -> tuple[NDArray[np.int64], dict[str, Floats]]:
    """Return the start times of the completed requests and their values of each metric, NaN where
    one is not defined. A row group at a time, so that not all columns are in memory at once."""
    try:
        check_records(path)
    except EnvironmentProblem as error:
        raise ConfigError(str(error)) from error
    reader = read_parquet(path, batch_size=ROW_GROUP)
    times: list[NDArray[np.int64]] = []
    values: dict[str, list[Floats]] = {tag: [] for tag in metrics}
    for batch in reader:
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
        for every in PhaseRows(columns, phase=Phase.PROFILING).chunks(Population.COMPLETED):
            chunk = of_patient_clients(every)
            times.append(chunk["start_wall_ns"])
            for tag, metric in metrics.items():
                assert metric.compute is not None
                values[tag].append(metric.compute(chunk))
    if not times:
        return np.zeros(0, np.int64), {}
    return np.concatenate(times), {tag: np.concatenate(parts) for tag, parts in values.items()}
