"""The artifact folder of a benchmark that ran a tool on ranks. Every file is written atomically."""

from collections.abc import Sequence
from pathlib import Path

from aiperf_svc.adapters.exports import tool_export as export
from aiperf_svc.adapters.exports import verdict_export
from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry
from aiperf_svc.adapters.exports.result_files import TOOL_FILE, render
from aiperf_svc.adapters.report import tool_page
from aiperf_svc.adapters.storage.artifacts import write_manifest
from aiperf_svc.adapters.storage.atomic_files import write_atomically, write_file
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.workloads.steps import Plot


def write_run(
    folder: Path,
    result: ToolResult,
    plots: Sequence[Plot],
    *,
    known: tuple[ManifestEntry, ...] = (),
) -> Manifest:
    """Write every result file of a run and the manifest over all that `folder` then holds, the raw
    output included; `known` are files that need not be read again.

    Raises EnvironmentProblem that names the file which could not be written; those before it stay.
    """
    write_file(folder / "config.yaml", lambda: export.render_config(result))
    write_file(folder / TOOL_FILE, lambda: render(result))
    write_file(folder / "results.csv", lambda: export.render_csv(result))
    write_file(
        folder / "verdict.json",
        lambda: verdict_export.render_verdict(result.judgement, result.slo),
    )
    write_file(folder / "report.html", lambda: tool_page.render(result, plots))
    write_atomically(folder / "series.parquet", lambda part: export.write_series(part, result))
    return write_manifest(folder, result.run_id, known=known)
