"""The folder of an experiment while its trials run.

After each trial its part of experiment.json is rendered, its files are listed and its link is made;
nothing of the trials before it is read or rendered again. Files about all trials together are
written at the end.
"""

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import yaml

from aiperf_svc.adapters.exports import inference_file
from aiperf_svc.adapters.exports.experiment_export import render_progress, render_trial
from aiperf_svc.adapters.exports.experiment_file import NAME
from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.manifest import (
    Manifest,
    ManifestEntry,
    list_files,
    read_manifest,
)
from aiperf_svc.adapters.exports.parquet_export import read_records
from aiperf_svc.adapters.storage.artifacts import save_manifest, write_manifest
from aiperf_svc.adapters.storage.atomic_files import unwritable, write_file
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment, write_links
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.scenario_files import (
    endpoints_config,
    result_summary,
    summary_text,
)
from aiperf_svc.core.experiments.scenario_result import (
    ScenarioResult,
    samples_of,
    scenario_result,
)
from aiperf_svc.core.experiments.scenarios import Scenario
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import summarise_rows
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.outcomes import Outcome, Phase

FOLDER = "mlperf"
SUMMARY_TEXT = "mlperf_log_summary.txt"
RESULT_SUMMARY = "performance/result_summary.json"
"""Where the submission checker looks for it, beside ENDPOINTS_CONFIG."""
ENDPOINTS_CONFIG = "config.yaml"


class ExperimentFolder:
    """Writes the files of one experiment."""

    def __init__(self, folder: Path, config: Config, run_id: str) -> None:
        self._folder, self._config, self._run_id = folder, config, run_id
        self._trials: list[tuple[int, msgspec.Raw]] = []
        """Number of each trial that has ended, and its part of experiment.json."""
        self._files: dict[str, tuple[ManifestEntry, ...]] = {}
        """Files of each folder of a trial, those of attempts that failed too."""
        self._unlisted: list[Path] = []
        """Folders of trials whose files are not listed yet."""

    def add(self, row: TrialRow) -> None:
        """Add a trial that has ended; another attempt replaces the one before."""
        if self._trials and self._trials[-1][0] == row.number:
            self._trials.pop()
        self._trials.append((row.number, render_trial(row)))
        self._unlisted.append(self._folder / TRIALS / row.outcome.folder)

    def write_progress(self, latest: TrialRow, search: SearchReport | None) -> None:
        """Write the files after a trial. Raises EnvironmentProblem."""
        rendered = [each for _, each in sorted(self._trials, key=lambda each: each[0])]
        data = render_progress(rendered, self._config, search)
        write_file(self._folder / NAME, lambda: data)
        write_links(self._folder, {latest.number: latest.outcome.folder})
        try:
            own = [
                entry
                for path in self._folder.iterdir()
                if path.name != TRIALS
                for entry in list_files(self._folder, path)
            ]
            of_trials = self._of_trials()
        except OSError as error:
            raise unwritable(self._folder, error) from error
        files = sorted([*own, *of_trials], key=lambda each: each.name)
        save_manifest(self._folder, Manifest(self._run_id, tuple(files)))

    def write_all(self, rows: list[TrialRow], search: SearchReport | None) -> Manifest:
        """Write all files after the last trial. Raises EnvironmentProblem."""
        write_experiment(self._folder, self._config, summarise_rows(rows), search)
        known = tuple(entry for files in self._files.values() for entry in files)
        return write_manifest(self._folder, self._run_id, known=known)

    def _of_trials(self) -> list[ManifestEntry]:
        while self._unlisted:
            folder = self._unlisted[-1]
            known = self._known(folder)
            self._files[folder.name] = list_files(self._folder, folder, known=known)
            self._unlisted.pop()
        return [entry for files in self._files.values() for entry in files]

    def _known(self, folder: Path) -> list[ManifestEntry]:
        """The files that a trial has listed itself."""
        if not (folder / MANIFEST).exists():
            return []
        prefix = folder.relative_to(self._folder).as_posix()
        return [
            msgspec.structs.replace(entry, name=f"{prefix}/{entry.name}")
            for entry in read_manifest(folder).files
        ]


def write_scenario(folder: Path, scenario: Scenario, config: BenchmarkConfig) -> ScenarioResult:
    """Judge the finished run in a folder as a scenario and write the files. Raises
    EnvironmentProblem."""
    run = inference_file.decode((folder / "profile_export_aiperf.json").read_bytes())
    columns = read_records(folder / "records.parquet")
    is_profiling = columns["phase"] == Phase.PROFILING
    rows = {name: column[is_profiling] for name, column in columns.items()}
    unsent = sum(run.value(tag) or 0 for tag in ("unsent_request_count", "lost_request_count"))
    known = int(np.isin(rows["outcome"], (Outcome.UNSENT, Outcome.LOST)).sum())
    samples = samples_of(rows, scenario, without_row=max(0, int(unsent) - known))
    result = scenario_result(scenario, samples, config.endpoint.model)
    content = result_summary(
        result,
        started_ns=samples.began_ns,
        version=run.version,
        is_complete=run.is_complete,
    )
    files = {
        SUMMARY_TEXT: summary_text(result, name=config.name).encode(),
        RESULT_SUMMARY: json_file(content),
        ENDPOINTS_CONFIG: yaml.safe_dump(endpoints_config(config, result)).encode(),
    }
    for name, data in files.items():
        write_file(folder / FOLDER / name, partial(bytes, data))
    return result
