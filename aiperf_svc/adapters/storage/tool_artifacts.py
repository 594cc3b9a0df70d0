"""The artifact folder of a benchmark that runs a tool on ranks. Files are written atomically."""

import os
from collections.abc import Sequence
from errno import ENAMETOOLONG
from pathlib import Path
from typing import BinaryIO

import msgspec
from arro3.core import Array, DataType, Field

from aiperf_svc.adapters.exports.file_content import csv_file
from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX, Manifest, is_plain_part
from aiperf_svc.adapters.exports.parquet_export import write_table
from aiperf_svc.adapters.exports.result_files import TOOL_FILE, render, render_verdict
from aiperf_svc.adapters.report import tool_page
from aiperf_svc.adapters.storage.artifacts import write_manifest
from aiperf_svc.adapters.storage.atomic_files import write_atomically, write_file
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.results.tool_result import STATS, ToolResult
from aiperf_svc.domain.foreign_text import csv_cell
from aiperf_svc.protocol.messages.steps import StepOutput, StepRecord
from aiperf_svc.workloads.steps import PlannedStep, Plot

SERIES_FORMAT = "1"
"""Version of the format of series.parquet."""
_SERIES_FIELDS = (
    ("step", DataType.string()),
    ("repetition", DataType.uint32()),
    ("series", DataType.string()),
    ("label", DataType.string()),
    ("unit", DataType.string()),
    ("time_s", DataType.float64()),
    ("value", DataType.float64()),
)

FOLDER = "step-{:03d}"


def write_run(folder: Path, result: ToolResult, plots: Sequence[Plot]) -> Manifest:
    """Write every result file of a run, and the manifest over all files in `folder`, including the
    raw output.

    Raises EnvironmentProblem with the file that could not be written. Files written before it stay.
    """
    write_file(folder / "config.yaml", lambda: render_config(result))
    write_file(folder / TOOL_FILE, lambda: render(result))
    write_file(folder / "results.csv", lambda: render_csv(result))
    verdict = result.judgement, result.slo
    write_file(folder / "verdict.json", lambda: render_verdict(*verdict))
    write_file(folder / "report.html", lambda: tool_page.render(result, plots))
    write_atomically(folder / "series.parquet", lambda part: write_series(part, result))
    return write_manifest(folder, result.run_id)


class RawOutput:
    """Writes pieces as they arrive. On a full disk the raw output is lost, but not the results."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, BinaryIO] = {}
        self._lost: set[Path] = set()
        """Files that could not be written; later pieces of them would follow a gap."""
        self.error = ""
        """Reason why some output is missing; empty if it is complete."""

    def add(self, piece: StepOutput) -> None:
        if piece.is_last:
            return
        step = self._folder / FOLDER.format(piece.step) / f"rank-{piece.rank}"
        # Clients would refuse a result with any other name (`check_entry`).
        name = "".join(each if each.isprintable() else "_" for each in piece.file)
        # A tool's file may be in a subfolder. Its name must not lead out of our folder, nor end
        # like that of an unfinished file, which is not a result.
        parts = [
            f"{part}_" if part.endswith(TEMPORARY_SUFFIX) else part
            for part in name.split("/")
            if part not in ("", ".", "..")
        ]
        path = step.joinpath(f"command-{piece.command}", *parts)
        if path in self._lost:
            return
        try:
            if not all(map(is_plain_part, parts)):
                raise OSError(ENAMETOOLONG, os.strerror(ENAMETOOLONG))
            file = self._files.get(path)
            if file is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = self._files[path] = path.open("wb")
            file.write(piece.data)
        except OSError as error:
            self._lost.add(path)
            self._fail(path, error)

    def end_step(self, record: StepRecord) -> None:
        """Close a step's files, and rename its folder to the step's name."""
        folder = self._folder / FOLDER.format(record.step)
        for path in [path for path in self._files if path.is_relative_to(folder)]:
            self._close(self._files.pop(path))
        plan = msgspec.json.decode(record.plan, type=PlannedStep)
        named = self._folder / plan.folder
        try:
            if folder.exists():
                folder.rename(named)
        except OSError as error:
            self._fail(named, error)

    def close(self) -> None:
        while self._files:
            self._close(self._files.popitem()[1])

    def _close(self, file: BinaryIO) -> None:
        try:
            file.close()
        except OSError as error:
            self._fail(file.name, error)

    def _fail(self, path: object, error: OSError) -> None:
        self.error = self.error or f"cannot write {path}: {error.strerror or error}"


def render_config(result: ToolResult) -> bytes:
    """Render config.yaml: the resolved config, which can be run again without changes."""
    return yaml_text(result.config).encode()


def render_csv(result: ToolResult) -> bytes:
    """Render results.csv: a row for each metric and statistic, then a row for each of its values.
    Missing values are empty."""
    lines: list[Sequence[object]] = [
        ("metric", "unit", "better", "statistic", "step", "repetition", "value")
    ]
    for metric in result.metrics:
        info = metric.info
        head = (info.tag, csv_cell(info.unit), info.better)
        for stat in STATS:
            lines.append((*head, stat, "", "", _number(metric.stat(stat))))
        for each in metric.values:
            place = (csv_cell(each.step), each.repetition)
            lines.append((*head, "value", *place, _number(each.value)))
    return csv_file(lines)


def write_series(path: Path, result: ToolResult) -> None:
    """Write a row for each point of each series. Raises OSError."""
    rows = [
        (each.step, each.repetition, series.name, series.label, series.unit, time_s, value)
        for each in result.series
        for series in (each.series,)
        for time_s, value in zip(series.times_s, series.values, strict=True)
    ]
    fields = [Field(name, kind, nullable=False) for name, kind in _SERIES_FIELDS]
    arrays = [
        Array([row[index] for row in rows], kind) for index, (_, kind) in enumerate(_SERIES_FIELDS)
    ]
    metadata = {
        "aiperf_svc.format": SERIES_FORMAT,
        "aiperf_svc.version": result.version,
        "aiperf_svc.run_id": result.run_id,
    }
    write_table(path, fields, [arrays], metadata)


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)
