"""Output files of each kind of run keep their names, keys and columns, and docs/results.md
documents them.

`artifact_keys.json` contains those of one run of each kind. `pytest --write-samples` rewrites it.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from arro3.io import read_parquet

from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.adapters.storage.experiment_folder import write_scenario
from aiperf_svc.adapters.storage.tool_artifacts import write_run as write_tools_run
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.scenarios import Scenario
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.measured import Column, Series, Table
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.joining import finish
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import JointRun
from aiperf_svc.runner.start_gate import Offset
from tests.support import fake_run, fake_steps
from tests.support.fake_folders import write_run, write_trials
from tests.support.fake_trials import search_report
from tests.support.in_one_loop import results_of

KEYS = Path(__file__).with_name("artifact_keys.json")
PAGE = Path(__file__).parents[2] / "docs" / "results.md"
CONFIG_PARTS = ("config", "input_config", "payloads", "topology")
"""Objects whose keys come from the config, the prompts or the plan."""
MAPS = ("finish_reasons", "histogram", "labels", "buckets", "parameters", "statistics")
"""Objects whose keys are data."""
LOAD_DEPENDENT = ("reasons", "stats", "system.metrics")
"""Keys that depend on the load of the machine: failed checks, and the number of page reads."""

FEW = ("request_throughput", "time_to_first_token_p99")
"""Metrics whose columns are listed. An inference benchmark of one run lists all."""
OTHER_KINDS = (
    ("experiment", "experiment.json"),
    ("several clusters", "joint.json"),
    ("experiment on several clusters", "joint.json"),
    ("scenario", "mlperf/performance/result_summary.json"),
    ("tool", "results.json"),
    ("tool", "series.parquet"),
)
"""Kinds of runs and their files whose keys or columns the page documents."""


def keys_of(content: Any, path: str = "") -> set[str]:
    """Return the paths of all keys. Paths inside a metric begin with `METRIC`."""
    if isinstance(content, list):
        return {key for each in content for key in keys_of(each, f"{path}[]")}
    if not isinstance(content, dict):
        return set()
    found = set()
    for name, value in content.items():
        shown = "URL" if name.startswith("http://") else name
        key = f"{path}.{shown}" if path else shown
        found.add(key)
        if name in CONFIG_PARTS or key.endswith(LOAD_DEPENDENT):
            continue
        if not (name in MAPS and isinstance(value, dict)):
            found |= keys_of(value, "METRIC" if is_metric(name) else key)
    return found


@cache
def is_metric(name: str) -> bool:
    """Return whether a name is or begins with the tag of a metric, like an experiment's columns."""
    return name in CATALOG or any(name.startswith(f"{tag}_") for tag in CATALOG)


def names_in(file: Path) -> list[str]:
    """Return the keys of a JSON file, columns of a Parquet file, or header lines of a CSV file."""
    if file.suffix == ".json":
        return sorted(keys_of(json.loads(file.read_text())))
    if file.suffix == ".jsonl":
        lines = file.read_text().splitlines()
        return sorted({key for line in lines for key in keys_of(json.loads(line))})
    if file.suffix == ".parquet":
        return list(read_parquet(file).schema.names)
    if file.suffix == ".csv":
        blocks = file.read_text().strip().split("\n\n")
        return [block.splitlines()[0] for block in blocks]
    return []


def without_most_metrics(names: list[str]) -> list[str]:
    """Return paths of keys, columns and header lines for a few metrics only. An experiment has a
    column for every statistic of every metric."""

    def is_kept(name: str) -> bool:
        return name.startswith(FEW) or not is_metric(name)

    keys = [name for name in names if all(map(is_kept, name.split(".")))]
    return [",".join(filter(is_kept, key.split(","))) for key in keys]


def names_below(folder: Path) -> dict[str, list[str]]:
    """Return the names in each file by its path, except in links, trials and joint runs."""
    files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*"))}
    left_out = ("trials/", "profile_runs/", "eu/", "us/")
    return {
        name: without_most_metrics(names_in(file))
        for name, file in files.items()
        if file.is_file() and not name.startswith(left_out)
    }


def write_an_experiment(folder: Path) -> None:
    """Write two combinations with two repetitions each, and a failed trial."""
    measured = [write_run(folder / "trials" / str(count), "r", count) for count in (200, 100)]
    trials = [Trial(n, {"load.concurrency": 1 + n % 2}, 1 + n // 3) for n in (1, 2, 3, 4)]
    outcomes = [TrialOutcome(each, "done", "", measured[each.number % 2]) for each in trials]
    failed = TrialOutcome(Trial(5, {"load.concurrency": 9}), "failed", "refused", None)
    write_experiment(folder, fake_run.config(), summarise([*outcomes, failed]), search_report())


def write_a_joint_run(folder: Path) -> None:
    """Write a run on each of two clusters."""
    found = [(name, write_run(folder / name, name, 200)) for name in ("eu", "us")]
    finish_joint(folder, dict(found))


def write_a_joint_experiment(folder: Path) -> None:
    """Write an experiment on each of two clusters."""
    found = [(name, write_trials(folder / name, 200, 100)) for name in ("eu", "us")]
    finish_joint(folder, dict(found))


def finish_joint(folder: Path, found: Mapping[str, Results]) -> None:
    runs = [
        JointRun(
            name=name,
            where=name,
            outcome=RunOutcome(
                run_id="r", state=RunState.DONE, reason="", results=results, artifacts=folder / name
            ),
            offsets={1: Offset(0, 40_000)},
        )
        for name, results in found.items()
    ]
    finish("clusters", "bench", folder, runs, RunOptions())


def write_a_scenario(folder: Path) -> None:
    """Write the additional files of a scenario."""
    run = folder / "trials"
    write_run(run, "r", 200)
    write_scenario(run, Scenario.SINGLE_STREAM, fake_run.config())
    (run / "mlperf").rename(folder / "mlperf")


def write_a_tools_run(folder: Path) -> None:
    """Write a step with two metrics, a series and a table, and a failed step."""
    table = Table(name="t", columns=(Column("size", "bytes"),), rows=((1.0,),))
    series = Series(name="bandwidth", unit="bit/s", times_s=(0.5,), values=(1.0,))
    done = fake_steps.record(fake_steps.reading(series=(series,), tables=(table,)))
    failed = fake_steps.record(number=2, problem="rank 0: exit code 1")
    write_tools_run(folder, fake_steps.result(done, failed), ())


KINDS: dict[str, Callable[[Path], None]] = {
    "experiment": write_an_experiment,
    "several clusters": write_a_joint_run,
    "experiment on several clusters": write_a_joint_experiment,
    "scenario": write_a_scenario,
    "tool": write_a_tools_run,
}


async def names_of_a_run(folder: Path) -> dict[str, list[str]]:
    with running(MockServerConfig(ttft="5ms", itl="20ms", tokens=5)) as mock:
        config = {
            "endpoint": {"url": mock.url, "model": "mock", "streaming": True},
            "load": {
                "request_rate": 300,
                # Even on a slow machine the last request waits for an earlier one, for a steady
                # rate.
                "concurrency": 10,
                "arrival": {"pattern": "constant"},
                "requests": 200,
                "warmup": {"requests": 2},
            },
            "dataset": {"entries": 20, "input_tokens": {"mean": 20}},
            "slo": {
                "objectives": [{"metric": "time_to_first_token", "stat": "p90", "max": "1m"}],
                "goodput": {"time_to_first_token": "1m"},
            },
            "artifacts": {"http_trace": True, "slice_duration": "300ms"},
            "random_seed": 7,
        }
        await results_of(config, folder)
    files = sorted((folder / "artifacts").iterdir())
    return {file.name: names_in(file) for file in files if file.is_file()}


def compare(kind: str, found: dict[str, list[str]], *, is_written: bool) -> None:
    """Compare with the stored names. `--write-samples` writes them first."""
    known = json.loads(KEYS.read_text())
    if is_written:
        known[kind] = found
        KEYS.write_text(json.dumps(known, indent=1) + "\n")
    remedy = "run: pytest --write-samples tests/integration/test_artifact_keys.py"
    assert found.keys() == known[kind].keys(), remedy
    for name, keys in known[kind].items():
        assert found[name] == keys, f"{name}; {remedy}"


async def test_run_writes_the_known_files_keys_and_columns(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = await names_of_a_run(tmp_path)
    compare("run", found, is_written=request.config.getoption("--write-samples"))


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_write_known_files_keys_and_columns(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    KINDS[kind](tmp_path)
    found = names_below(tmp_path)
    compare(kind, found, is_written=request.config.getoption("--write-samples"))


def test_results_page_names_every_file_column_and_key() -> None:
    known, page = json.loads(KEYS.read_text()), PAGE.read_text()
    run = known["run"]
    ours = [
        key.removeprefix("aiperf_svc.")
        for key in run["profile_export_aiperf.json"]
        if key.startswith("aiperf_svc.") and key.count(".") == 1
    ]
    metadata = [
        key.removeprefix("metadata.")
        for key in run["profile_export.jsonl"]
        if key.startswith("metadata.")
    ]
    named = [*run["records.parquet"], *run["telemetry.parquet"], *ours, *metadata]
    for files in known.values():
        named += [Path(name).name for name in files]
    for kind, name in OTHER_KINDS:
        named += [key for key in known[kind][name] if "." not in key]
    missing = [name for name in dict.fromkeys(named) if f"`{name}`" not in page]
    assert missing == []
