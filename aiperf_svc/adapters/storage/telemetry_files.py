"""The files of a run that hold what servers and GPU exporters said. Written atomically, each."""

from collections.abc import Iterable
from pathlib import Path

from aiperf_svc.adapters.exports import server_metrics_export as servers
from aiperf_svc.adapters.exports import server_metrics_parquet, telemetry_export
from aiperf_svc.adapters.storage.atomic_files import write_atomically, write_file
from aiperf_svc.core.results.summary import Summary


def write_telemetry(folder: Path, summary: Summary) -> None:
    """Write the files for which a run has sources; none without a source.

    Raises EnvironmentProblem that names the file which could not be written.
    """
    logs = [log for log in summary.telemetry if log.has_pages]
    if not logs:
        return
    if any(not log.is_gpu for log in logs):
        lines = servers.render_lines(summary)
        _write_lines(folder / "server_metrics_export.jsonl", lines)
        write_file(folder / "server_metrics_export.json", lambda: servers.render_json(summary))
        write_file(folder / "server_metrics_export.csv", lambda: servers.render_csv(summary))
        write_atomically(
            folder / "server_metrics_export.parquet",
            lambda part: server_metrics_parquet.write(part, summary),
        )
    gpus = [log for log in logs if log.has_gpus]
    if gpus:
        _write_lines(folder / "gpu_telemetry_export.jsonl", servers.render_gpu_lines(gpus))
    if summary.client is not None and summary.client.has_pages:
        logs.append(summary.client)
    write_atomically(
        folder / "telemetry.parquet",
        lambda part: telemetry_export.write_parquet(part, logs, run_id=summary.context.run_id),
    )
    _write_lines(folder / "metrics.om", telemetry_export.render_openmetrics(logs))


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    def write(part: Path) -> None:
        with part.open("wb") as file:
            file.writelines(lines)

    write_atomically(path, write)
