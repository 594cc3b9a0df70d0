"""Reads finished runs as points of a curve, from their results and the single requests in
`records.parquet`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from aiperf_svc.adapters.comparison.run_folders import RECORDS
from aiperf_svc.adapters.exports.parquet_export import check_records, read_records
from aiperf_svc.adapters.exports.result_files import find_results, read_run
from aiperf_svc.adapters.storage.provenance_file import read_provenance
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.rules.measured_point import MeasuredPoint, sent_requests
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem


def read_points(folders: Sequence[Path], min_s: Callable[[int], float]) -> list[MeasuredPoint]:
    """Return the runs in these folders. `min_s` returns the minimum duration of a steady state at
    a concurrency. Raises ConfigError."""
    return [_read(folder, min_s) for folder in folders]


def _read(folder: Path, min_s: Callable[[int], float]) -> MeasuredPoint:
    path = find_results(folder)
    if path is None:
        raise ConfigError(f"{folder}: no results of a run")
    result = read_run(path)
    if not isinstance(result, InferenceResult):
        raise ConfigError(
            f"{folder}: a run of {result.workload}; the rules are for inference servers"
        )
    point = MeasuredPoint(str(folder), result, None, read_provenance(folder))
    records = folder / RECORDS
    if not records.is_file():
        return point
    try:
        check_records(records)
    except EnvironmentProblem as error:
        raise ConfigError(str(error)) from error
    sent = sent_requests(
        read_records(records),
        pass_size=max(1, point.entries),
        min_s=min_s(point.concurrency),
    )
    return structs.replace(point, sent=sent)
