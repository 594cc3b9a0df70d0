"""The common exit code and the files of several runs."""

import csv
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.telemetry.system_report import SourceReport, SystemReport
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.joining import finish, joint_exit_code
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunEnd, RunOutcome
from aiperf_svc.runner.parts import JointRun
from aiperf_svc.runner.start_gate import Offset
from tests.support.fake_folders import write_run, write_trials
from tests.support.fake_results import inference_result
from tests.support.fake_trials import search_report


def outcome(verdict: str = "valid", **fields: Any) -> RunOutcome:
    defaults: dict[str, Any] = {
        "run_id": "r",
        "state": "done",
        "reason": "",
        "results": inference_result(1, verdict),
        "artifacts": None,
    }
    return RunOutcome(**{**defaults, **fields})


NOT_REACHED = RunEnd(error=EnvironmentProblem("nothing responds")).outcome()
REFUSED = RunEnd(error=ConfigError("no such model")).outcome()


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([outcome(), outcome()], ExitCode.OK),
        ([outcome(), outcome("invalid")], ExitCode.VERDICT_INVALID),
        ([outcome("invalid"), NOT_REACHED], ExitCode.BENCHMARK_FAILED),
        ([outcome(), REFUSED], ExitCode.BENCHMARK_FAILED),
        ([REFUSED, NOT_REACHED], ExitCode.BAD_CONFIG),
        ([NOT_REACHED, REFUSED], ExitCode.ERROR),
        ([outcome(was_interrupted=True), NOT_REACHED], ExitCode.INTERRUPTED),
        ([outcome(is_unverified=True), REFUSED], ExitCode.ERROR),
        ([outcome(was_interrupted=True), outcome(is_unverified=True)], ExitCode.ERROR),
        ([outcome(), outcome(is_unverified=True, results=None)], ExitCode.ERROR),
        ([outcome(is_unverified=True), outcome(is_unlisted=True)], ExitCode.UNVERIFIED),
        ([outcome(), outcome(is_unlisted=True)], ExitCode.UNVERIFIED),
        ([REFUSED, outcome(is_unlisted=True)], ExitCode.UNVERIFIED),
        ([outcome(was_interrupted=True), outcome(left=("Pod x",))], ExitCode.LEAKED),
    ],
)
def test_joint_exit_code_is_the_worst(outcomes: list[RunOutcome], code: ExitCode) -> None:
    assert joint_exit_code(outcomes) is code


@pytest.mark.parametrize(("gpus", "total"), [(("GPU-1 on n",), 1.0), ((), None)])
def test_server_of_two_targets_counts_once(
    tmp_path: Path, gpus: tuple[str, ...], total: float | None
) -> None:
    page = SourceReport(
        url="http://n:9400/metrics", is_gpu=True, reads=9, failures=0, latency_ms=1.0,
        update_interval_s=None, gpus=gpus,
    )  # fmt: skip
    system = SystemReport(verdict=Severity.VALID, checks=(), metrics={}, sources=(page,))
    counted = {"gpu_count": MetricStats(unit="count", avg=1.0)}
    runs = []
    for name in ("base", "lora"):
        found = write_run(tmp_path / name, name, 100)
        results = replace(found, metrics=found.metrics | counted, system=system)
        ended = outcome(results=results, artifacts=tmp_path / name)
        runs.append(JointRun(name=name, where="http://127.0.0.1:9100", outcome=ended))
    finish("targets", "bench", tmp_path, runs, RunOptions(json=True))
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert joint["total"].get("gpu_count", {}).get("avg") == total
    assert len(joint["notes"]) == 1


def test_files_hold_every_run_and_an_exact_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name, count, ahead_ns in (("eu", 800, 0), ("us", 300, 250_000)):
        content = write_run(tmp_path / name, name, count)
        made = outcome(results=content, artifacts=tmp_path / name)
        offset = Offset(ahead_ns, 40_000)
        runs.append(JointRun(name=name, where=f"context-{name}", outcome=made, offsets={1: offset}))
    runs.append(JointRun(name="asia", where="context-asia", outcome=NOT_REACHED))

    code = finish("clusters", "bench", tmp_path, runs, RunOptions(json=True))
    assert code is ExitCode.BENCHMARK_FAILED
    output = capsys.readouterr()
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert json.loads(output.out)["results"] == joint
    assert (joint["total_of"], joint["exit_code"]) == (["eu", "us"], int(code))
    assert joint["verdict"] == "invalid"
    eu, us, asia = joint["members"]
    assert (eu["folder"], asia["folder"], asia["reason"]) == ("eu", "", "nothing responds")
    for tag in ("request_count", "total_osl"):
        total = joint["total"][tag]["avg"]
        assert total == eu["metrics"][tag]["avg"] + us["metrics"][tag]["avg"]
    latency = joint["total"]["request_latency"]
    assert latency["count"] == sum(m["metrics"]["request_latency"]["count"] for m in (eu, us))
    assert joint["start_spread_ms"] == pytest.approx(0.25, abs=0.01)
    assert joint["start_uncertainty_ms"] == 0.04
    assert "the total is without asia" in output.err
    assert all(line == line.rstrip() for line in output.err.splitlines())
    page = (tmp_path / "report.html").read_text()
    assert '<a href="eu/report.html">eu</a>' in page
    assert "nothing responds" in page
    head = (tmp_path / "joint.csv").read_text().splitlines()[0]
    assert head == "metric,unit,eu,us,asia,total"


def test_unmeasured_clocks_print_no_start_offsets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name, offsets in (("eu", {1: Offset(0, 40_000)}), ("us", {})):
        content = write_run(tmp_path / name, name, 300)
        made = outcome(results=content, artifacts=tmp_path / name)
        runs.append(JointRun(name=name, where="", outcome=made, offsets=offsets))
    finish("clusters", "bench", tmp_path, runs, RunOptions(json=True))
    output = capsys.readouterr()
    joint = json.loads(output.out)["results"]
    assert joint["total_of"] == ["eu", "us"]
    assert joint["start_uncertainty_ms"] is None
    assert "first measured requests" not in output.err


def test_incomplete_run_is_left_out_of_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name in ("eu", "us"):
        content = write_run(tmp_path / name, name, 100)
        made = outcome(results=content if name == "eu" else None, artifacts=tmp_path / name)
        runs.append(JointRun(name=name, where=name, outcome=made))
    assert finish("clusters", "b", tmp_path, runs, RunOptions()) is ExitCode.BENCHMARK_FAILED
    assert json.loads((tmp_path / "joint.json").read_bytes())["total_of"] == ["eu"]
    assert "the total is without us" in capsys.readouterr().out


def test_upload_and_file_errors_of_members_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name, more in (
        ("eu", {"uploaded_to": "s3://bucket/eu"}),
        ("us", {"artifact_error": "the upload failed"}),
    ):
        results = write_run(tmp_path / name, name, 100)
        made = outcome(results=results, artifacts=tmp_path / name, **more)
        runs.append(JointRun(name=name, where=name, outcome=made))
    assert finish("clusters", "b", tmp_path, runs, RunOptions()) is ExitCode.ERROR
    output = capsys.readouterr().out
    assert "eu: uploaded: s3://bucket/eu/" in output
    assert "us: error: the upload failed" in output


NOT_LISTED = "records.parquet: missing, or not the file that the manifest lists"


def cut(records: Path) -> None:
    """Damage a file like an incomplete copy."""
    records.write_bytes(records.read_bytes()[:-100])


def test_unreadable_records_leave_other_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name in ("eu", "us", "asia"):
        made = outcome(results=write_run(tmp_path / name, name, 100), artifacts=tmp_path / name)
        runs.append(JointRun(name=name, where=name, outcome=made))
    cut(tmp_path / "us" / "records.parquet")
    assert finish("clusters", "b", tmp_path, runs, RunOptions()) is ExitCode.ERROR
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert (joint["total_of"], joint["exit_code"]) == (["eu", "asia"], ExitCode.ERROR)
    assert joint["total"]["request_count"]["avg"] == 200
    assert joint["members"][1]["metrics"]["request_count"]["avg"] == 100
    assert joint["members"][1]["problem"] == f"{tmp_path}/us/{NOT_LISTED}"
    output = capsys.readouterr().out
    assert "the total is without us" in output
    assert f"us: {tmp_path}/us/{NOT_LISTED}" in output
    assert NOT_LISTED in (tmp_path / "report.html").read_text()


def experiment(folder: Path, *counts: int) -> RunOutcome:
    """Return the outcome of an experiment whose trials have these numbers of requests."""
    return outcome(results=write_trials(folder, *counts), artifacts=folder)


def test_trials_join_singly_failed_one_has_no_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = {1: Offset(0, 40_000), 2: Offset(500_000, 60_000)}
    runs = [
        JointRun(name=name, where="", outcome=experiment(tmp_path / name, *counts), offsets=offsets)
        for name, counts, offsets in (
            ("eu", (800, 200, 50), {1: Offset(0, 40_000)}),
            ("us", (300, 100, 0), at),
        )
    ]
    code = finish("clusters", "bench", tmp_path, runs, RunOptions(json=True))
    assert code is ExitCode.BENCHMARK_FAILED
    output = capsys.readouterr()
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert json.loads(output.out)["results"] == joint
    first, second, third = joint["total"]["trials"]
    counts = [each["values"]["request_count_avg"] for each in (first, second)]
    assert counts == [1_100, 300]
    assert (third["state"], third["reason"]) == ("failed", "us: a worker was lost")
    assert third["values"] == {}
    assert joint["starts"][0]["start_spread_ms"] == pytest.approx(0.0, abs=0.01)
    assert joint["starts"][1]["start_spread_ms"] == pytest.approx(0.5, abs=0.01)
    assert joint["starts"][2]["total_of"] == ["eu"]
    assert "within 0.5 ms of each other, with a clock uncertainty of ± 0.1 ms" in output.err
    rows = list(csv.DictReader((tmp_path / "joint.csv").read_text().splitlines()))
    assert [(row["cluster"], row["number"]) for row in rows] == [
        (name, number) for name in ("eu", "us", "total") for number in "123"
    ]
    by_name = {row["cluster"]: row["request_count_avg"] for row in rows if row["number"] == "3"}
    assert by_name == {"eu": "50.0", "us": "", "total": ""}
    one = json.loads((tmp_path / TRIALS / third["folder"] / "joint.json").read_bytes())
    assert [(m["name"], m["state"]) for m in one["members"]] == [("eu", "done"), ("us", "failed")]
    linked = tmp_path / TRIALS / first["folder"] / one["members"][0]["folder"] / "report.html"
    assert linked.is_file()
    page = (tmp_path / "report.html").read_text()
    assert f'href="trials/{quote(first["folder"])}/report.html"' in page
    assert "a worker was lost" in page


def test_search_over_several_targets_shows_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = search_report()
    runs = []
    for name in ("eu", "us"):
        results = replace(write_trials(tmp_path / name, 80, 60), search=search)
        made = outcome(results=results, artifacts=tmp_path / name)
        runs.append(JointRun(name=name, where=name, outcome=made))
    assert finish("clusters", "bench", tmp_path, runs, RunOptions(json=True)) is ExitCode.OK
    output = capsys.readouterr()
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert json.loads(output.out)["results"] == joint
    assert joint["search"]["result"] == search.result
    answer = f"load.concurrency {search.result}"
    assert answer in output.err
    assert answer in (tmp_path / "report.html").read_text()


def test_run_without_ended_trials_is_in_no_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        JointRun(name="eu", where="e", outcome=experiment(tmp_path / "eu", 80, 20)),
        JointRun(name="us", where="u", outcome=NOT_REACHED),
    ]
    assert finish("clusters", "bench", tmp_path, runs, RunOptions()) is ExitCode.BENCHMARK_FAILED
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    counts = [each["values"]["request_count_avg"] for each in joint["total"]["trials"]]
    assert counts == [80, 20]
    assert joint["notes"] == ["the total is without us"]
    assert [each["state"] for each in joint["members"]] == ["done", "failed"]
    output = capsys.readouterr().out
    assert "eu: done, 2 trials of 2 combinations" in output
    assert "us: failed, 0 trials of 0 combinations, nothing responds" in output
    assert "the total is without us" in output


def test_unreadable_trial_leaves_other_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        JointRun(name=name, where=name, outcome=experiment(tmp_path / name, 80, 60, 40))
        for name in ("eu", "us")
    ]
    first, second, _ = sorted((tmp_path / "us" / TRIALS).iterdir())
    cut(first / "records.parquet")
    cut(second / "profile_export_aiperf.json")
    assert finish("clusters", "b", tmp_path, runs, RunOptions()) is ExitCode.ERROR
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert joint["exit_code"] == ExitCode.ERROR
    trials = joint["total"]["trials"]
    assert [each["state"] for each in trials] == ["failed", "failed", "done"]
    assert NOT_LISTED in trials[0]["reason"]
    assert "us: its results cannot be read" in trials[1]["reason"]
    assert trials[2]["values"]["request_count_avg"] == 80
    assert "Total: counts are sums" in capsys.readouterr().out


def test_unreadable_experiment_leaves_other_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        JointRun(name=name, where=name, outcome=experiment(tmp_path / name, 80, 60))
        for name in ("eu", "us")
    ]
    cut(tmp_path / "us" / "experiment.json")
    assert finish("clusters", "b", tmp_path, runs, RunOptions()) is ExitCode.ERROR
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert [each["values"]["request_count_avg"] for each in joint["total"]["trials"]] == [80, 60]
    without, problem = joint["notes"]
    assert without == "the total is without us"
    assert problem.startswith(f"us: {tmp_path}/us/experiment.json: broken")
    assert problem in capsys.readouterr().out
