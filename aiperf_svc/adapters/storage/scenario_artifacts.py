"""Writes the files of a scenario beside those of a finished run, in the folder `mlperf`: both have
a `config.yaml`."""

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import yaml

from aiperf_svc.adapters.exports import inference_file
from aiperf_svc.adapters.exports.parquet_export import read_records
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.config.benchmark import BenchmarkConfig
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
from aiperf_svc.domain.outcomes import Outcome, Phase

FOLDER = "mlperf"
SUMMARY_TEXT = "mlperf_log_summary.txt"
RESULT_SUMMARY = "performance/result_summary.json"
"""Where the submission checker looks for it, beside ENDPOINTS_CONFIG."""
ENDPOINTS_CONFIG = "config.yaml"


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
        RESULT_SUMMARY: msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n",
        ENDPOINTS_CONFIG: yaml.safe_dump(endpoints_config(config, result)).encode(),
    }
    for name, data in files.items():
        write_file(folder / FOLDER / name, partial(bytes, data))
    return result
