"""Folders written by earlier versions load without changes.

`tests/data/results.tar.xz` contains one folder of each kind as written by commands, without
reports, logs and tables.
"""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from aiperf_svc.adapters.comparison.run_folders import find_runs, read_runs
from aiperf_svc.adapters.exports import result_files
from aiperf_svc.adapters.exports.experiment_file import read_experiment_file
from aiperf_svc.adapters.report import experiment_page
from aiperf_svc.adapters.storage import resuming
from aiperf_svc.adapters.storage.experiment_artifacts import read_outcomes
from aiperf_svc.adapters.storage.experiment_folder import write_scenario
from aiperf_svc.adapters.storage.joint_artifacts import NO_RECORDS
from aiperf_svc.adapters.storage.shape_trials import ShapeTrials
from aiperf_svc.adapters.trackers.finished_run import read_finished
from aiperf_svc.cli.main import main
from aiperf_svc.config.load_config import load_config
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.scenarios import Scenario
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.runner.joining import finish
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import JointRun
from aiperf_svc.runner.printing import print_results
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.terminal import on_console

RUNS = {
    "inference": "time_to_first_token:p99",
    "command": "speed",
    "fio": "iops",
    "iperf": "bandwidth",
}
"""Kinds of runs, each with one of its metrics."""
EXPERIMENTS = ("experiment", "tool-experiment", "scenario", "search")
ADDED = re.compile(rb'"(checks|system)":"",|,"gpus":\[\]')
"""Keys that are newer than the stored results, with default values: keys of trials in
experiment.json and of metric sources."""


def outcome(folder: Path, name: str = "") -> RunOutcome:
    path = next(p for n in ("experiment.json", *result_files.FILES) if (p := folder / n).exists())
    return RunOutcome(
        run_id=name,
        state="done",
        reason="",
        results=result_files.decode(path.read_bytes()),
        artifacts=folder,
    )


def test_results_of_every_kind_encode_to_equal_bytes(stored: Path) -> None:
    names = ("experiment.json", *result_files.FILES)
    paths = [path for name in names for path in stored.rglob(name)]
    assert len(paths) > 25
    for path in paths:
        data = path.read_bytes()
        again = ADDED.sub(b"", result_files.encode(result_files.decode(data)))
        assert data in (again + b"\n", msgspec.json.format(again, indent=1) + b"\n"), path


@pytest.mark.parametrize("kind", [*RUNS, *EXPERIMENTS])
def test_a_stored_folder_is_printed(kind: str, stored: Path) -> None:
    found = outcome(stored / kind)
    text = on_console(print_results, found)
    assert ("Experiment: " in text) is (kind in EXPERIMENTS)
    assert "Verdict on the" in text or kind in EXPERIMENTS
    assert text.rstrip().endswith(f"Artifacts: {stored / kind}/")
    shown = json.loads(msgspec.json.encode(found.as_json()))
    assert shown["exit_code"] == (9 if kind == "inference" else 0)
    assert shown["results"]["schema_version"]


@pytest.mark.parametrize(("kind", "metric"), RUNS.items())
def test_stored_runs_are_compared_and_make_a_history(
    kind: str, metric: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = read_runs(find_runs([stored / kind]))
    assert run.is_usable
    assert run.headline[0] in run.values
    assert main(["history", str(stored / kind), "--metric", metric, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["run_id"] for each in found["runs"]] == [run.run_id]
    assert read_finished(stored / kind).run_id == run.run_id


def test_stored_trials_are_compared(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(stored / "experiment")
    assert main(["compare", folder, "--by", "load.concurrency=1,2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["word"] for row in rows} == {"?"}
    assert main(["compare", str(stored / "targets/there"), str(stored / "targets/same")]) == 0
    assert "Request Throughput" in capsys.readouterr().out


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_stored_experiment_is_reported_and_resumed(kind: str, stored: Path) -> None:
    folder, results = stored / kind, outcome(stored / kind).results
    assert isinstance(results, ExperimentResult)
    trials = read_experiment_file(folder).trials
    summary = summarise(read_outcomes(folder, trials))
    assert [row.number for row in summary.rows] == [each.number for each in results.trials]
    config = parse_benchmark(results.config, folder.name)
    page = experiment_page.render(summary, config, results.search).decode()
    assert quote(summary.rows[0].outcome.folder) in page
    resuming.check({folder: config})
    opened = [ShapeTrials(config, (), folder)]
    kept = resuming.keep_finished(opened, config)
    assert kept == {each.number for each in trials if each.state == "done"}
    assert all((folder / "trials" / each.folder).is_dir() for each in trials)


def test_a_stored_scenario_is_judged_again(stored: Path) -> None:
    (trial,) = (stored / "scenario" / "trials").iterdir()
    before = (trial / "mlperf" / "mlperf_log_summary.txt").read_text()
    config = load_config(trial / "config.yaml")
    write_scenario(trial, Scenario.SINGLE_STREAM, config)
    assert (trial / "mlperf" / "mlperf_log_summary.txt").read_text() == before


def totals(joint: dict[str, Any], tag: str) -> list[float]:
    """Return the number, or the median, of a metric in the total of a run or of each trial."""
    stat = "avg" if tag == "request_count" else "p50"
    trials = joint["total"].get("trials")
    if trials is None:
        return [joint["total"][tag][stat]]
    return [trial["values"][f"{tag}_{stat}"] for trial in trials]


@pytest.mark.parametrize("kind", ["targets", "targets-experiment"])
def test_stored_targets_are_joined_again(
    kind: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored / kind
    before = json.loads((folder / "joint.json").read_bytes())
    names = [each["name"] for each in before["members"]]
    # Clocks of runs on one machine agree within microseconds.
    runs = [JointRun(name=n, where="", outcome=outcome(folder / n, n)) for n in names]
    finish("targets", "two", folder, runs, RunOptions(json=True))
    shown = capsys.readouterr()
    after = json.loads(shown.out)["results"]
    assert after == json.loads((folder / "joint.json").read_bytes())
    for key in ("request_count", "request_latency"):
        assert totals(after, key) == totals(before, key)
    assert NO_RECORDS not in shown.err
