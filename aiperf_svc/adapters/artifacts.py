"""The artifact folder of a run: every file written whole or not at all.

A file is written under a temporary name and renamed when it is complete, so that a half-written one
is never mistaken for a result.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports import config_export, csv_export, json_export, verdict_export
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX, Manifest, take_stock
from aiperf_svc.adapters.exports.parquet_export import write_records
from aiperf_svc.adapters.report import page
from aiperf_svc.core.columns import Columns
from aiperf_svc.core.results import Summary
from aiperf_svc.domain.errors import EnvironmentProblem


def write_all(folder: Path, summary: Summary, columns: Columns) -> Manifest:
    """Write every result file of a run and the manifest over all that `folder` then holds, the
    files that others put there included.

    Raises EnvironmentProblem that names the file which could not be written; those before it stay,
    and `summary` is untouched.
    """
    write_file(
        folder / "config.yaml", lambda: config_export.render(summary.context.config).encode()
    )
    write_file(folder / "profile_export_aiperf.json", lambda: json_export.render(summary))
    write_file(folder / "profile_export_aiperf.csv", lambda: csv_export.render(summary))
    write_file(folder / "verdict.json", lambda: verdict_export.render(summary))
    write_file(folder / "report.html", lambda: page.render(summary))
    write_with(
        folder / "records.parquet", lambda part: write_records(part, columns, summary.context)
    )
    return write_manifest(folder, summary.context.run_id)


def write_manifest(folder: Path, run_id: str) -> Manifest:
    """Write `manifest.json` over all that `folder` holds; again when files were added."""
    try:
        manifest = take_stock(folder, run_id)
    except OSError as error:
        raise _problem(folder, error) from error
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    write_file(folder / MANIFEST, lambda: content)
    return manifest


def write_file(path: Path, render: Callable[[], bytes]) -> None:
    """Write one file from its content."""
    content = render()
    write_with(path, lambda part: _write(part, content))


def write_with(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then give it its name; remove it when that fails."""
    part = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):  # what went wrong first is what the user must know
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _problem(path, error) from error
        raise


def _write(part: Path, content: bytes) -> None:
    part.write_bytes(content)


def _problem(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot write {path}: {error.strerror or error}; "
        "free some space or choose another folder (artifacts.dir)"
    )
