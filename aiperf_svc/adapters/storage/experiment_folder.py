"""The folder of an experiment.

After each trial, its part of experiment.json is rendered, its files are listed and its link is
created. Earlier trials are neither read nor rendered again. Experiment-level files are written at
the end.
"""

import os
from collections.abc import Mapping
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
from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry, list_files, read_manifest
from aiperf_svc.adapters.exports.parquet_export import read_clocks, read_records
from aiperf_svc.adapters.storage.artifacts import save_manifest, write_manifest
from aiperf_svc.adapters.storage.atomic_files import unwritable, write_file
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment, write_links
from aiperf_svc.adapters.storage.uploads import folder_of_experiment, upload
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.scenario_files import (
    endpoints_config,
    result_summary,
    summary_text,
)
from aiperf_svc.core.experiments.scenario_result import ScenarioResult, samples_of, scenario_result
from aiperf_svc.core.experiments.scenarios import Scenario
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import EndedTrials, summarise_rows
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.domain.outcomes import Outcome, Phase

FOLDER = "mlperf"
SUMMARY_TEXT = "mlperf_log_summary.txt"
RESULT_SUMMARY = "performance/result_summary.json"
"""Path at which the submission checker expects the file, beside ENDPOINTS_CONFIG."""
ENDPOINTS_CONFIG = "config.yaml"


class ExperimentFolder:
    """Writes the files of one experiment."""

    def __init__(
        self, config: Config, folder: Path, ended: EndedTrials, *, bucket_folder: str = ""
    ) -> None:
        """`ended` are the trials to include. `bucket_folder` is the folder for uploads; its default
        comes from `folder`."""
        self._config, self.folder, self._ended = config, folder, ended
        self._bucket_folder = bucket_folder
        self._rendered: dict[int, tuple[TrialRow, msgspec.Raw]] = {}
        """Each trial in experiment.json, with its rendered part."""
        self._files: dict[str, tuple[ManifestEntry, ...]] = {}
        """Files of each trial's folder, including those of failed attempts."""

    def write_progress(self, search: SearchReport | None = None) -> None:
        """Write experiment.json and the links for the trials so far. `search` is the report of a
        search. Raises EnvironmentProblem."""
        rows, known = self._ended.rows, self._rendered
        new = [row for row in rows if row.number not in known or known[row.number][0] is not row]
        rendered = known | {row.number: (row, render_trial(row)) for row in new}
        parts = [rendered[row.number][1] for row in rows]
        write_file(self.folder / NAME, lambda: render_progress(parts, self._config, search))
        write_links(self.folder, {row.number: row.outcome.folder for row in new})
        self._rendered = rendered

    def list_files(self, run_id: str) -> None:
        """Write manifest.json with the files so far. Raises EnvironmentProblem."""
        try:
            own = [
                entry
                for path in self.folder.iterdir()
                if path.name != TRIALS
                for entry in list_files(self.folder, path)
            ]
            for name in {row.outcome.folder for row in self._ended.rows} - self._files.keys():
                self._files[name] = self._files_of(self.folder / TRIALS / name)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        files = sorted([*own, *self._trial_files], key=lambda each: each.name)
        save_manifest(self.folder, Manifest(run_id, tuple(files)))

    def _files_of(self, trial: Path) -> tuple[ManifestEntry, ...]:
        """List the files of a trial. Files in its own manifest are not read again."""
        listed = read_manifest(trial).files if (trial / MANIFEST).exists() else ()
        prefix = trial.relative_to(self.folder).as_posix()
        known = [msgspec.structs.replace(each, name=f"{prefix}/{each.name}") for each in listed]
        return list_files(self.folder, trial, known=known)

    @property
    def _trial_files(self) -> tuple[ManifestEntry, ...]:
        return tuple(entry for files in self._files.values() for entry in files)

    def write(self, run_id: str, search: SearchReport | None = None) -> ExperimentResult | None:
        """Write all files after the last trial, and return the results. Raises
        EnvironmentProblem."""
        summary = summarise_rows(self._ended.rows)
        results = write_experiment(self.folder, self._config, summary, search)
        write_manifest(self.folder, run_id, known=self._trial_files)
        return results

    def write_scenario(self, row: TrialRow) -> None:
        """Write a trial's scenario result, if the experiment has a scenario and the trial has
        results. Raises EnvironmentProblem."""
        experiment, folder = self._config.experiment, self.folder / TRIALS / row.outcome.folder
        if experiment is None or experiment.scenario is None or row.measured is None:
            return
        if (folder / MANIFEST).exists():
            assert self._config.inference is not None
            write_scenario(folder, Scenario(experiment.scenario), self._config.inference)
            write_manifest(folder, read_manifest(folder).run_id)

    def upload(self, environ: Mapping[str, str] = os.environ) -> str:
        """Upload the files that the bucket lacks, and return their URL; empty if results are not
        uploaded. `environ` contains the keys. Raises EnvironmentProblem."""
        s3 = self._config.artifacts.s3
        if s3 is None or not self._ended.by_number:
            return ""
        manifest = read_manifest(self.folder)
        return upload(self.folder, manifest, s3, into=self._upload_folder, environ=environ).url

    @property
    def has_upload(self) -> bool:
        return self._config.artifacts.s3 is not None and self._config.experiment is not None

    @property
    def _upload_folder(self) -> str:
        """Folder in the bucket for all trials, which later runners of the experiment also use;
        empty if results are not uploaded."""
        experiment = self._config.experiment
        if not self.has_upload or experiment is None:
            return ""
        return self._bucket_folder or folder_of_experiment(self.folder, experiment)


def write_scenario(folder: Path, scenario: Scenario, config: BenchmarkConfig) -> ScenarioResult:
    """Judge the finished run in a folder as a scenario and write the result files. Raises
    EnvironmentProblem."""
    run = inference_file.decode((folder / "profile_export_aiperf.json").read_bytes())
    records = folder / "records.parquet"
    columns = read_records(records)
    is_profiling = columns["phase"] == Phase.PROFILING
    rows = {name: column[is_profiling] for name, column in columns.items()}
    unsent = sum(run.value(tag) or 0 for tag in ("unsent_request_count", "lost_request_count"))
    known = int(np.isin(rows["outcome"], (Outcome.UNSENT, Outcome.LOST)).sum())
    clocks = ClockMap(read_clocks(records))
    samples = samples_of(rows, scenario, clocks=clocks, without_row=max(0, int(unsent) - known))
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
