"""The files of an experiment, ours and those in AIPerf's layout."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from arro3.io import read_parquet

from aiperf_svc.adapters.exports.aiperf_sweep_export import combination_names
from aiperf_svc.adapters.exports.experiment_file import read_experiment_file
from aiperf_svc.adapters.exports.manifest import is_whole, read_manifest
from aiperf_svc.adapters.storage.artifacts import write_manifest
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.adapters.storage.experiment_folder import ExperimentFolder
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import EndedTrials, summarise
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from tests.support import fake_run
from tests.support.fake_trials import outcome, sweep

CONFIG = fake_run.context(fake_run.closed_loop(requests=10)).config
POINTS = {1: (10.0, 5.0), 2: (20.0, 6.0), 4: (19.0, 7.0)}
AGGREGATE = "profile_export_aiperf_aggregate"


@pytest.fixture
def outcomes() -> list[TrialOutcome]:
    """Return three combinations with three repetitions, and a failed trial."""
    failed = outcome(10, {"load.concurrency": 8}, state="failed", reason="=connection refused")
    return [*sweep(POINTS, repetitions=3, step=1.0), failed]


def tables(path: Path) -> list[list[list[str]]]:
    """Return the tables of a CSV file, which are separated by empty lines."""
    parts = path.read_text().split("\n\n")
    return [list(csv.reader(StringIO(part))) for part in parts]


def test_json_has_trials_combinations_and_best(
    tmp_path: Path, outcomes: list[TrialOutcome]
) -> None:
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    found = json.loads((tmp_path / "experiment.json").read_text())
    assert found["schema_version"] == "experiment/1"
    assert found["parameters"] == [{"name": "load.concurrency", "values": [1, 2, 4, 8]}]
    assert [each["number"] for each in found["trials"]] == list(range(1, 11))
    first = found["combinations"][0]
    assert (first["parameters"], first["trials"]) == ({"load.concurrency": 1}, [1, 4, 7])
    value = first["values"]["request_throughput_avg"]
    assert (value["n"], value["mean"], value["sd"]) == (3, 11.0, 1.0)
    assert value["ci_low"] + value["ci_high"] == pytest.approx(22.0)
    assert found["combinations"][-1]["left_out"] == [
        {"number": 10, "reason": "failed: =connection refused"}
    ]
    assert found["best"][0]["parameters"] == {"load.concurrency": 2}
    assert found["front"]["optimal"] == [{"load.concurrency": 1}, {"load.concurrency": 2}]
    assert found["config"]["name"] == CONFIG.name


def test_csv_and_parquet_have_the_same_rows(tmp_path: Path, outcomes: list[TrialOutcome]) -> None:
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    rows = list(csv.DictReader(StringIO((tmp_path / "experiment.csv").read_text())))
    table = read_parquet(tmp_path / "experiment.parquet").read_all()
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    assert list(rows[0]) == table.column_names
    assert columns["load.concurrency"] == [float(row["load.concurrency"]) for row in rows]
    known = columns["time_to_first_token_p99"]
    assert known == [5.0, 6.0, 7.0, 6.0, 7.0, 8.0, 7.0, 8.0, 9.0, None]
    assert [row["time_to_first_token_p99"] for row in rows[:9]] == [str(each) for each in known[:9]]
    assert rows[-1]["time_to_first_token_p99"] == ""
    assert rows[-1]["reason"] == "'=connection refused"
    assert columns["state"][-1] == "failed"


def test_non_numeric_parameter_is_text(tmp_path: Path) -> None:
    outcomes = [
        outcome(1, {"endpoint.model": "a"}, throughput=1.0),
        outcome(2, {"dataset": {"kind": "x"}}, throughput=2.0),
    ]
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    table = read_parquet(tmp_path / "experiment.parquet").read_all()
    assert table.column("endpoint.model").to_pylist() == ["a", None]
    assert table.column("dataset").to_pylist() == [None, '{"kind":"x"}']


def test_negative_parameters_stay_numbers_in_tables(tmp_path: Path) -> None:
    key = "endpoint.extra_inputs.top_k"
    outcomes = [
        outcome(number, {key: value}, throughput=1.0) for number, value in ((1, -1), (2, 20))
    ]
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    with (tmp_path / "experiment.csv").open() as file:
        assert [row[key] for row in csv.DictReader(file)] == ["-1", "20"]
    metrics, *_ = tables(tmp_path / "sweep_aggregate" / "profile_export_aiperf_sweep.csv")
    assert {row[0] for row in metrics[1:]} == {"-1", "20"}


def test_aiperf_reads_the_sweep(tmp_path: Path, outcomes: list[TrialOutcome]) -> None:
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    stem = tmp_path / "sweep_aggregate" / "profile_export_aiperf_sweep"
    found = json.loads(stem.with_suffix(".json").read_text())
    assert found["aggregation_type"] == "sweep"
    assert (found["num_profile_runs"], found["num_successful_runs"]) == (10, 9)
    assert found["failed_runs"] == [{"label": "run_0010", "error": "failed: =connection refused"}]
    assert found["metadata"]["sweep_parameters"] == [
        {"name": "load.concurrency", "values": [1, 2, 4, 8]}
    ]
    assert len(found["per_combination_metrics"]) == 3
    metric = found["per_combination_metrics"][0]["metrics"]["request_throughput_avg"]
    assert set(metric) == {
        "mean", "std", "min", "max", "cv", "se", "ci_low", "ci_high", "t_critical", "unit",
    }  # fmt: skip
    assert metric["t_critical"] == pytest.approx(4.302653, rel=1e-5)
    assert found["best_configurations"]["best_throughput"] == {
        "parameters": {"load.concurrency": 2},
        "metric": 21.0,
        "unit": "requests/sec",
    }
    assert found["pareto_optimal"] == [{"load.concurrency": 1}, {"load.concurrency": 2}]
    metrics, best, optimal, metadata = tables(stem.with_suffix(".csv"))
    assert metrics[0][:3] == [
        "load.concurrency",
        "request_throughput_avg_mean",
        "request_throughput_avg_std",
    ]
    assert metrics[1][:3] == ["1", "11.00", "1.00"]
    assert best[2] == ["Best Throughput", "2", "21.00", "requests/sec"]
    assert optimal == [["Pareto Optimal Points"], ["load.concurrency"], ["1"], ["2"]]
    assert ["Number of Successful Runs", "9"] in metadata


def test_aiperf_reads_the_aggregate_of_each_combination(
    tmp_path: Path, outcomes: list[TrialOutcome]
) -> None:
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    folders = sorted(path.name for path in (tmp_path / "aggregate").iterdir())
    assert folders == ["concurrency_1", "concurrency_2", "concurrency_4"]
    stem = tmp_path / "aggregate" / "concurrency_4" / AGGREGATE
    found = json.loads(stem.with_suffix(".json").read_text())
    assert found["metadata"]["aggregation_type"] == "confidence"
    assert found["metadata"]["run_labels"] == ["run_0003", "run_0006", "run_0009"]
    # AIPerf's plots read the load of an aggregate from these.
    assert found["metadata"]["variation_label"] == "load.concurrency=4"
    assert found["metadata"]["variation_values"] == {"load.concurrency": 4}
    assert found["metrics"]["time_to_first_token_p99"]["mean"] == 8.0
    metrics, metadata = tables(stem.with_suffix(".csv"))
    assert metrics[0][0] == "metric"
    assert ["Total Runs", "3"] in metadata


def test_small_costs_keep_their_digits_in_tables(tmp_path: Path) -> None:
    costs = {1: 0.0004, 2: 0.0006}
    tag = "cost_per_million_output_tokens"
    outcomes = [
        outcome(n, {}, repetition=n, throughput=10.0, more={tag: MetricStats(unit="USD", avg=cost)})
        for n, cost in costs.items()
    ]
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    metrics, _ = tables(tmp_path / "aggregate" / f"{AGGREGATE}.csv")
    found = {row[0]: dict(zip(metrics[0], row, strict=True)) for row in metrics[1:]}
    cells = found[f"{tag}_avg"]
    assert (cells["mean"], cells["std"], cells["se"]) == ("0.0005", "0.0001414", "0.0001")
    assert found["request_throughput_avg"]["mean"] == "10.00"


def test_repetitions_of_one_config_have_no_sweep(tmp_path: Path) -> None:
    outcomes = [outcome(n, {}, repetition=n, throughput=1.0 * n) for n in (1, 2)]
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    assert (tmp_path / "aggregate" / f"{AGGREGATE}.json").is_file()
    assert not (tmp_path / "sweep_aggregate").exists()


def test_runs_are_links_that_follow_a_second_attempt(tmp_path: Path) -> None:
    first = outcome(1, {}, throughput=1.0)
    for name in (first.folder, "001-r1-attempt2"):
        (tmp_path / "trials" / name).mkdir(parents=True)
        (tmp_path / "trials" / name / "report.html").write_text(name)
    link = tmp_path / "profile_runs" / "run_0001"
    write_experiment(tmp_path, CONFIG, summarise([first]))
    assert link.is_symlink()
    assert (link / "report.html").read_text() == "001-r1"
    write_experiment(
        tmp_path, CONFIG, summarise([first._replace(attempt_folder="001-r1-attempt2")])
    )
    assert (link / "report.html").read_text() == "001-r1-attempt2"
    assert [path.name for path in link.parent.iterdir()] == ["run_0001"]


def test_a_second_call_leaves_no_other_files(tmp_path: Path, outcomes: list[TrialOutcome]) -> None:
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    before = sorted(tmp_path.rglob("*"))
    write_experiment(tmp_path, CONFIG, summarise(outcomes))
    assert sorted(tmp_path.rglob("*")) == before
    assert not [path for path in before if path.name.endswith(".part")]


def test_combinations_with_equal_names_are_numbered() -> None:
    outcomes = [
        outcome(1, {"endpoint.model": "a/b"}, throughput=1.0),
        outcome(2, {"endpoint.model": "a b"}, throughput=1.0),
        outcome(3, {"endpoint.model": "c" * 200}, throughput=1.0),
        outcome(4, {"endpoint.model": "d"}, throughput=1.0),
    ]
    names = combination_names(summarise(outcomes))
    assert names == ["combination_0001", "combination_0002", "combination_0003", "model_d"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"experiment\.json"):
        write_experiment(tmp_path / "file", CONFIG, summarise([]))


def test_running_experiment_lists_its_finished_trials(tmp_path: Path) -> None:
    ended = EndedTrials()
    folder = ExperimentFolder(CONFIG, tmp_path, ended)
    first = outcome(1, {"load.concurrency": 1}, throughput=1.0)
    failed = outcome(2, {"load.concurrency": 2}, state="failed", reason="refused")
    again = outcome(2, {"load.concurrency": 2}, throughput=2.0)
    again = again._replace(attempt_folder=f"{failed.folder}-attempt2")
    outcomes = (first, failed, again)
    for each in outcomes:
        own = tmp_path / "trials" / each.folder
        own.mkdir(parents=True)
        (own / "results").write_text(each.folder)
        write_manifest(own, "trial")
        ended.add(each)
        folder.write_progress()
        folder.list_files("run")
    progress = json.loads((tmp_path / "experiment.json").read_text())
    assert [each["state"] for each in progress["trials"]] == ["done", "done"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "experiment.json", "manifest.json", "profile_runs", "trials",
    ]  # fmt: skip
    listed = read_manifest(tmp_path)
    assert {entry.name for entry in listed.files} == {
        "experiment.json",
        *(f"trials/{o.folder}/{n}" for o in outcomes for n in ("results", "manifest.json")),
    }
    assert all(is_whole(tmp_path / entry.name, entry) for entry in listed.files)
    assert read_experiment_file(tmp_path).trials[1].folder == again.attempt_folder
    folder.write("run")
    whole = read_manifest(tmp_path)
    written = json.loads((tmp_path / "experiment.json").read_text())
    assert written["trials"] == progress["trials"]
    assert written["config"] == progress["config"]
    assert all(is_whole(tmp_path / entry.name, entry) for entry in whole.files)
    names = {entry.name for entry in whole.files}
    assert {
        "experiment.csv",
        "report.html",
        "sweep_aggregate/profile_export_aiperf_sweep.csv",
    } < names
    assert not any(name.startswith("aggregate/") for name in names)  # only for single runs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("[", "broken"),
        ("{}", "broken"),
        ('{"schema_version": "experiment/9"}', "use the version that wrote it"),
        (
            '{"schema_version": "experiment/1", "trials": [{"number": 1, "repetition": 1, '
            '"parameters": {}, "state": "done", "reason": "", "folder": "../x"}]}',
            "is not the name of a folder",
        ),
    ],
)
def test_a_folder_that_holds_no_experiment_is_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "experiment.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_experiment_file(tmp_path)
