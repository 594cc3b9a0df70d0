"""The artifact folder of a run. Every file is written atomically."""

from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports import (
    config_export,
    csv_export,
    result_files,
    slices_export,
    verdict_export,
)
from aiperf_svc.adapters.exports.json_export import result_of
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry, build_manifest
from aiperf_svc.adapters.exports.parquet_export import write_records
from aiperf_svc.adapters.exports.result_files import INFERENCE_FILE
from aiperf_svc.adapters.report import page
from aiperf_svc.adapters.storage.atomic_files import unwritable, write_atomically, write_file
from aiperf_svc.adapters.storage.telemetry_files import write_telemetry
from aiperf_svc.core.results.slices import slices
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.domain.metric_formulas import Columns


def write_all(
    folder: Path, summary: Summary, columns: Columns, *, known: tuple[ManifestEntry, ...] = ()
) -> Manifest:
    """Write every result file of a run and the manifest over all that `folder` then holds, the
    files that others put there included; `known` are files that need not be read again.

    Raises EnvironmentProblem that names the file which could not be written; those before it stay,
    and `summary` is untouched.
    """
    write_file(
        folder / "config.yaml", lambda: config_export.render(summary.context.config).encode()
    )
    write_file(folder / INFERENCE_FILE, lambda: result_files.render(result_of(summary)))
    write_file(folder / "profile_export_aiperf.csv", lambda: csv_export.render(summary))
    write_file(folder / "verdict.json", lambda: verdict_export.render(summary))
    write_file(folder / "report.html", lambda: page.render(summary))
    write_atomically(
        folder / "records.parquet", lambda part: write_records(part, columns, summary.context)
    )
    if (width_ns := summary.context.config.artifacts.slice_duration) is not None:
        _write_slices(folder, summary, columns, width_ns)
    write_telemetry(folder, summary)
    return write_manifest(folder, summary.context.run_id, known=known)


def _write_slices(folder: Path, summary: Summary, columns: Columns, width_ns: int) -> None:
    context = summary.context
    found = list(slices(columns, context, width_ns=width_ns))
    path = folder / slices_export.NAME
    write_file(path.with_suffix(".json"), lambda: slices_export.render_json(found, context.config))
    write_file(path.with_suffix(".csv"), lambda: slices_export.render_csv(found))


def write_manifest(folder: Path, run_id: str, *, known: tuple[ManifestEntry, ...] = ()) -> Manifest:
    """Write `manifest.json` for all files in `folder`. Repeated when files were added."""
    try:
        manifest = build_manifest(folder, run_id, known=Manifest(run_id, known))
    except OSError as error:
        raise unwritable(folder, error) from error
    save_manifest(folder, manifest)
    return manifest


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`. Raises EnvironmentProblem."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    write_file(folder / MANIFEST, lambda: content)
