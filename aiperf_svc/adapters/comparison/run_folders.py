"""Finds the runs of a comparison and reads their results, and `records.parquet` if single requests
are needed. Every problem is one line that names the folder or file."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from arro3.io import read_parquet
from msgspec.structs import replace
from numpy.typing import NDArray

from aiperf_svc.adapters.comparison.experiment_folders import (
    failed_run,
    failed_trials,
    read_experiment,
)
from aiperf_svc.adapters.exports.experiment_file import NAME as EXPERIMENT
from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.adapters.exports.parquet_export import ROW_GROUP, check_records
from aiperf_svc.adapters.exports.result_files import FILES, JOINT_FILE, find_results, read_run
from aiperf_svc.adapters.storage.answers_file import read_answers
from aiperf_svc.adapters.storage.provenance_file import read_provenance
from aiperf_svc.core.compare.estimates import batch_quantiles
from aiperf_svc.core.compare.measured_run import (
    MeasuredRun,
    RowKey,
    RunValue,
    common_facts,
    flatten,
)
from aiperf_svc.core.quality.gate import Agreement, agreement
from aiperf_svc.core.results.inference_result import (
    CATALOG_INFOS,
    STEADY,
    InferenceResult,
    steady_info,
)
from aiperf_svc.core.results.run_result import INFERENCE
from aiperf_svc.core.results.tool_result import MetricResult, ToolResult
from aiperf_svc.core.stats.columns import PhaseRows, exclude_abandoned
from aiperf_svc.core.stats.percentiles import QUANTILES
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.metric_catalog import CATALOG, Kind, Metric, Population
from aiperf_svc.domain.metric_formulas import Floats

RECORDS = "records.parquet"
STATS = ("avg", "p50", "p90", "p99", "p99_9")
"""Statistics of a distribution that have rows."""
SHIFTS = ("p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99_9")
PLOTTED = ("time_to_first_token", "request_latency", "inter_token_latency")
HEADLINE = (
    *(RowKey(tag, stat) for tag in PLOTTED for stat in ("p50", "p99")),
    RowKey("request_throughput"),
    RowKey("output_token_throughput"),
    RowKey("request_error_rate"),
    RowKey("quality_score"),
)
_SHARES = np.unique(np.concatenate((np.linspace(0, 1, 101), 1 - np.geomspace(1e-6, 1e-2, 41))))
NO_RESULTS = "failed: it has no results"
_MULTI_RUN_FILES = (EXPERIMENT, JOINT_FILE)
_TOPOLOGY = ("layout", "workers", "record_processors", "raw_route")


def read_runs(folders: Sequence[Path]) -> list[MeasuredRun]:
    """Read all runs in these folders, without single requests. Raises ConfigError."""
    return [_measured(folder) for folder in folders]


def _measured(folder: Path) -> MeasuredRun:
    path = find_results(folder)
    if path is None:
        raise ConfigError(f"{folder}: no run; expected {' or '.join(FILES)} in it")
    match read_run(path):
        case InferenceResult() as result:
            return _inference_run(folder, result)
        case ToolResult() as result:
            return _tool_run(folder, result)
        case other:
            raise TypeError(type(other))


def with_requests(runs: Sequence[MeasuredRun], *, batches: bool, curves: bool) -> list[MeasuredRun]:
    """Return the runs with the values that need their single requests. Runs without requests, and
    runs that are not compared, are unchanged. Raises ConfigError."""
    return [
        _with_requests(run, batches=batches, curves=curves)
        if run.kind == INFERENCE and run.is_usable
        else run
        for run in runs
    ]


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of runs: each given folder, the runs directly in it, or the trials of an
    experiment. Raises ConfigError."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        if is_experiment(folder):
            runs = [trial.folder for trial in read_experiment(folder)]
        elif find_results(folder):
            runs = [folder]
        else:
            runs = _runs_in(folder)
        if not runs:
            raise ConfigError(
                f"{folder}: no run; expected {' or '.join(FILES)} in it, or folders with one"
            )
        found += runs
    return found


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs directly in a folder, each once even if it is linked."""
    own_first = sorted(folder.iterdir(), key=lambda path: (path.is_symlink(), path))
    found: dict[Path, Path] = {}
    for path in filter(find_results, own_first):
        found.setdefault(path.resolve(), path)
    return sorted(found.values())


def is_joint(folder: Path) -> bool:
    """Return whether a folder holds the results of several targets or clusters."""
    return (folder / JOINT_FILE).is_file()


def refuse_joint(folders: Iterable[Path]) -> None:
    """Raise ConfigError if one of the folders holds the results of several targets or clusters,
    because they are not repetitions of one run."""
    if joint := next(filter(is_joint, folders), None):
        raise ConfigError(f"{joint}: results of several runs; name the folder of one of them in it")


def left_out_runs(folder: Path) -> list[MeasuredRun]:
    """Return the runs that `find_runs` leaves out of a folder. In an experiment: the trials that do
    not count. In any other folder: its direct subfolders that have logs but no results, or the
    results of several runs. Raises ConfigError."""
    if is_experiment(folder):
        return [run for _, run in failed_trials(folder)]
    if find_results(folder):
        return []
    found: list[MeasuredRun] = []
    for each in sorted(folder.iterdir()):
        if any((each / name).is_file() for name in _MULTI_RUN_FILES):
            text = "results of several runs; name this folder by itself"
            found.append(failed_run(each, text, cause=""))
        elif (each / "logs").is_dir() and not find_results(each):
            found.append(failed_run(each, NO_RESULTS))
    return found


def answers_agreement(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> Agreement | None:
    """Return how the answers of the first usable run of each side agree; None if they had no
    quality gate with the same questions. Raises ConfigError."""
    sides = [next((run for run in side if run.is_usable), None) for side in (base, new)]
    one, other = sides
    if one is None or other is None or not one.questions or one.questions != other.questions:
        return None
    return agreement(read_answers(Path(one.folder)), read_answers(Path(other.folder)))


def _inference_run(folder: Path, result: InferenceResult) -> MeasuredRun:
    """Return a run without its single requests."""
    values: dict[RowKey, RunValue] = {}
    shifts: dict[str, dict[str, float]] = {}
    for tag, measured in result.metrics.items():
        kind = CATALOG[tag].kind
        if kind is Kind.SCALAR:
            values[RowKey(tag)] = RunValue(measured.stat("avg") or 0.0)
            continue
        for stat in STATS:
            value = measured.stat(stat)
            if value is not None:
                is_percentile = stat in QUANTILES and kind is not Kind.TIMED
                count = int(measured.count or 0) if is_percentile else 0
                values[RowKey(tag, stat)] = RunValue(float(value), count)
        if tag in PLOTTED:
            known = {stat: measured.stat(stat) for stat in SHIFTS}
            shifts[tag] = {stat: value for stat, value in known.items() if value is not None}
    infos = {key.tag: CATALOG_INFOS[key.tag] for key in values}
    headline = HEADLINE
    if steady := result.steady_state:
        for key in HEADLINE:
            part = steady.metrics.get(key.tag)
            if part is None or (within_value := part.stat(key.stat or "avg")) is None:
                continue
            within = RowKey(f"{STEADY}{key.tag}", key.stat)
            values[within] = RunValue(within_value, int(part.count or 0) if key.stat else 0)
            infos[within.tag] = steady_info(key.tag)
            headline = (*headline, within)
    provenance = read_provenance(folder)
    return MeasuredRun(
        folder=str(folder),
        run_id=result.run_id,
        kind=result.workload,
        verdict=result.verdict,
        cause=result.cause,
        start_wall_ns=result.start_wall_ns,
        uptime_s=None if provenance is None else provenance.uptime_s(result.start_wall_ns),
        facts=_facts(result) | (provenance.compared if provenance is not None else {}),
        warnings=tuple(
            f"not comparable: {check.text}"
            for check in result.system_reasons
            if check.check == "speculation_comparable"
        ),
        metrics=infos,
        values=values,
        rule=steady.rule if steady else "",
        questions=result.quality.sha256 if result.quality else "",
        headline=headline,
        shifts=shifts,
    )


def _facts(result: InferenceResult) -> dict[str, str]:
    layout = result.topology
    facts = common_facts(result) | flatten({n: getattr(layout, n) for n in _TOPOLOGY}, "topology")
    # Each trial has its own texts of the same lengths, which is not a difference.
    is_own = facts.pop("dataset.variant", "none") != "none"
    built = layout.dataset
    checksum = built and (built.source_sha256 if is_own else built.sha256)
    facts["dataset.built"] = checksum or "none"
    if result.system is not None:
        failed = ", ".join(each.check for each in result.system_reasons)
        facts["system"] = f"{result.system.verdict}: {failed}".removesuffix(": ")
    return facts


def _with_requests(run: MeasuredRun, *, batches: bool, curves: bool) -> MeasuredRun:
    """Return the run with the values that need all of its requests: its parts, or the distributions
    of the plotted metrics. Raises ConfigError."""
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


def _requests(
    path: Path, metrics: dict[str, Metric]
) -> tuple[NDArray[np.int64], dict[str, Floats]]:
    """Return the start times of the completed requests and their values of each metric, NaN if
    undefined. Reads one row group at a time to limit memory."""
    try:
        check_records(path)
    except EnvironmentProblem as error:
        raise ConfigError(str(error)) from error
    reader = read_parquet(path, batch_size=ROW_GROUP)
    times: list[NDArray[np.int64]] = []
    values: dict[str, list[Floats]] = {tag: [] for tag in metrics}
    for batch in reader:
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
        for every in PhaseRows(columns).chunks(Population.COMPLETED):
            chunk = exclude_abandoned(every)
            times.append(chunk["start_wall_ns"])
            for tag, metric in metrics.items():
                assert metric.compute is not None
                values[tag].append(metric.compute(chunk))
    if not times:
        return np.zeros(0, np.int64), {}
    return np.concatenate(times), {tag: np.concatenate(parts) for tag, parts in values.items()}


def _tool_run(folder: Path, result: ToolResult) -> MeasuredRun:
    facts = common_facts(result) | flatten(result.facts, "facts")
    facts["tools"] = ", ".join(result.tools) or "none"
    facts |= {f"rank.{rank.number}.node": rank.node for rank in result.ranks}
    curves = {}
    for metric in result.metrics:
        values = np.sort([each.value for each in metric.values])
        curves[metric.info.tag] = (np.linspace(0, 1, len(values)), values)
    return MeasuredRun(
        folder=str(folder),
        run_id=result.run_id,
        kind=result.workload,
        verdict=result.verdict,
        cause=result.cause,
        start_wall_ns=result.start_wall_ns,
        facts=facts,
        metrics=result.infos,
        values={
            RowKey(metric.info.tag): RunValue(metric.avg, batches=_repetitions(metric))
            for metric in result.metrics
        },
        headline=tuple(RowKey(tag) for tag, _ in result.headline),
        curves=curves,
    )


def _repetitions(metric: MetricResult) -> tuple[float, ...]:
    found: dict[int, list[float]] = {}
    for each in metric.values:
        found.setdefault(each.repetition, []).append(each.value)
    return tuple(fmean(values) for _, values in sorted(found.items()))
