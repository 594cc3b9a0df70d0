"""The artifact folder of a run: results, records, and the metrics of servers, GPU exporters and our
services. Every file is written atomically."""

from collections.abc import Iterable
from pathlib import Path

from aiperf_svc.adapters.exports import (
    aiperf_exports,
    result_files,
    scaling_export,
    server_metrics_parquet,
    telemetry_export,
)
from aiperf_svc.adapters.exports import server_metrics_export as servers
from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry, build_manifest
from aiperf_svc.adapters.exports.parquet_export import write_records
from aiperf_svc.adapters.exports.result_files import INFERENCE_FILE
from aiperf_svc.adapters.report import page
from aiperf_svc.adapters.storage.atomic_files import unwritable, write_atomically, write_file
from aiperf_svc.adapters.storage.provenance_file import write_provenance
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.slices import slices
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.domain.metric_formulas import Columns


def write_all(
    folder: Path,
    summary: Summary,
    columns: Columns,
    *,
    result: InferenceResult | None = None,
    known: tuple[ManifestEntry, ...] = (),
) -> Manifest:
    """Write every result file of a run, and the manifest over all files in `folder`, including
    those that others put there. `result` is the summary's result, if it has already been computed.
    `known` are files that need not be read again.

    Raises EnvironmentProblem with the file that could not be written. Files written before it stay,
    and `summary` is unchanged.
    """
    config, made = summary.context.config.model_dump(mode="json"), result or result_of(summary)
    write_file(folder / "config.yaml", lambda: yaml_text(config).encode())
    write_file(folder / INFERENCE_FILE, lambda: result_files.render(made))
    write_file(folder / "profile_export_aiperf.csv", lambda: aiperf_exports.render_csv(summary))
    verdict = summary.verdict, summary.slo
    write_file(folder / "verdict.json", lambda: result_files.render_verdict(*verdict))
    if summary.provenance is not None:
        write_provenance(folder, summary.provenance)
    write_file(folder / "report.html", lambda: page.render(summary, made))
    write_atomically(
        folder / "records.parquet", lambda part: write_records(part, columns, summary.context)
    )
    if summary.scaling is not None:
        found = summary.scaling
        write_file(folder / scaling_export.NAME, lambda: scaling_export.render_csv(found))
    if (width_ns := summary.context.config.artifacts.slice_duration) is not None:
        _write_slices(folder, summary, columns, width_ns)
    write_telemetry(folder, summary)
    return write_manifest(folder, summary.context.run_id, known=known)


def _write_slices(folder: Path, summary: Summary, columns: Columns, width_ns: int) -> None:
    context = summary.context
    has_unsent = summary.accounts.unsent > 0
    found = list(slices(columns, context, width_ns=width_ns, has_unsent=has_unsent))
    path, export = folder / aiperf_exports.SLICES, aiperf_exports
    write_file(path.with_suffix(".json"), lambda: export.render_slices_json(found, context.config))
    write_file(path.with_suffix(".csv"), lambda: export.render_slices_csv(found))


def write_manifest(folder: Path, run_id: str, *, known: tuple[ManifestEntry, ...] = ()) -> Manifest:
    """Write `manifest.json` for all files in `folder`. Call it again after adding files."""
    try:
        manifest = build_manifest(folder, run_id, known=Manifest(run_id, known))
    except OSError as error:
        raise unwritable(folder, error) from error
    save_manifest(folder, manifest)
    return manifest


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`. Raises EnvironmentProblem."""
    write_file(folder / MANIFEST, lambda: json_file(manifest))


def write_telemetry(folder: Path, summary: Summary) -> None:
    """Write the telemetry files; without sources there are none.

    Raises EnvironmentProblem with the file that could not be written.
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
