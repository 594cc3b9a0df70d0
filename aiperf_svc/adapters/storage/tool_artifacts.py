"""The artifact folder of a benchmark that ran a tool on ranks. Every file is written atomically."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from aiperf_svc.adapters.exports import tool_export as export
from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry
from aiperf_svc.adapters.exports.result_files import TOOL_FILE, render, render_verdict
from aiperf_svc.adapters.report import tool_page
from aiperf_svc.adapters.storage.artifacts import write_manifest
from aiperf_svc.adapters.storage.atomic_files import write_atomically, write_file
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.protocol.messages.steps import StepOutput, StepRecord
from aiperf_svc.workloads.steps import PlannedStep, Plot

FOLDER = "step-{:03d}"


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
    verdict = result.judgement, result.slo
    write_file(folder / "verdict.json", lambda: render_verdict(*verdict))
    write_file(folder / "report.html", lambda: tool_page.render(result, plots))
    write_atomically(folder / "series.parquet", lambda part: export.write_series(part, result))
    return write_manifest(folder, result.run_id, known=known)


class RawOutput:
    """Writes pieces as they come. A full disk loses the raw output, not the results."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, BinaryIO] = {}
        self.error = ""
        """Reason why some of it is missing; empty if it is complete."""

    def add(self, piece: StepOutput) -> None:
        """Append one piece to its file."""
        if piece.is_last or self.error:
            return
        step = self._folder / FOLDER.format(piece.step) / f"rank-{piece.rank}"
        # A tool's file may be in a folder of its own; the name must not lead out of ours.
        parts = [part for part in Path(piece.file).parts if part not in ("..", "/")]
        path = step.joinpath(f"command-{piece.command}", *parts)
        try:
            file = self._files.get(path)
            if file is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = self._files[path] = path.open("wb")
            file.write(piece.data)
        except OSError as error:
            self.error = f"cannot write {path}: {error.strerror or error}"

    def end_step(self, record: StepRecord) -> None:
        """Close a step's files, and give its folder the step's name."""
        folder = self._folder / FOLDER.format(record.step)
        for path in [path for path in self._files if path.is_relative_to(folder)]:
            self._close(self._files.pop(path))
        plan = msgspec.json.decode(record.plan, type=PlannedStep)
        if folder.exists():
            folder.rename(self._folder / plan.folder)

    def close(self) -> None:
        """Close what is open."""
        while self._files:
            self._close(self._files.popitem()[1])

    def _close(self, file: BinaryIO) -> None:
        try:
            file.close()
        except OSError as error:
            self.error = self.error or f"cannot write {file.name}: {error.strerror or error}"
