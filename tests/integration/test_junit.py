"""JUnit files of real results, read by a third-party parser."""

import shutil
from pathlib import Path

import msgspec
import pytest
from junitparser import Error, Failure, JUnitXml, TestCase
from msgspec.structs import replace

from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.result_files import INFERENCE_FILE, JOINT_FILE, read_run
from aiperf_svc.adapters.storage.junit_file import (
    COMMAND,
    Case,
    comparison_cases,
    render,
    write_runs,
)
from aiperf_svc.cli import main as cli
from aiperf_svc.cli.main import main
from aiperf_svc.core.compare.comparison import Criteria
from aiperf_svc.core.compare.groups import Group, compare_groups
from aiperf_svc.core.qualify.result import CheckResult, NodeResult, Qualification, Verdict
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.runs_to_compare import inference_run, side


def cases(file: Path) -> dict[tuple[str, str], TestCase]:
    """Return the cases of a file by suite and name. Checks the file's counts."""
    whole = JUnitXml.fromfile(str(file))
    found = {(suite.name, case.name): case for suite in whole for case in suite}
    broken = [each for case in found.values() for each in case.result]
    assert whole.tests == len(found)
    assert whole.failures == sum(isinstance(each, Failure) for each in broken)
    assert whole.errors == sum(isinstance(each, Error) for each in broken)
    return found


def broken(file: Path) -> dict[str, str]:
    """Return name and message of the cases that did not pass."""
    return {name: case.result[0].message for (_, name), case in cases(file).items() if case.result}


def test_run_has_each_check_and_objective(stored: Path, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    write_runs(file, stored / "inference", ExitCode.OK, "")
    found = cases(file)
    verdict = msgspec.json.decode((stored / "inference" / "verdict.json").read_bytes())
    names = {name for _, name in found}
    judged = [each for each in verdict["checks"] if each["severity"] != "info"]
    assert {f"verdict: {each['check']}" for each in judged} <= names
    assert len([each for each in names if each.startswith("SLO")]) == len(verdict["slo"]) > 0
    result = read_run(stored / "inference" / INFERENCE_FILE)
    assert {suite for suite, _ in found} == {result.name, "aiperf-svc"}


@pytest.mark.parametrize("kind", ["experiment", "tool-experiment", "fio"])
def test_every_kind_of_folder_is_exported(stored: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "junit.xml"
    assert main(["export", str(stored / kind), "--junit", str(file)]) == ExitCode.OK
    assert len(cases(file)) > 5


@pytest.mark.parametrize("kind", ["targets", "targets-experiment"])
def test_target_without_results_is_an_error(stored: Path, tmp_path: Path, kind: str) -> None:
    folder, file = Path(shutil.copytree(stored / kind, tmp_path / kind)), tmp_path / "junit.xml"
    assert main(["export", str(folder), "--junit", str(file)]) == ExitCode.OK
    before = cases(file)
    assert {suite.partition("/")[0] for suite, _ in before} == {"there", "same", COMMAND}
    assert not before["same", "state"].result
    content = msgspec.json.decode((folder / JOINT_FILE).read_bytes())
    content["members"][1] |= {"folder": "", "state": "failed", "reason": "no such host"}
    (folder / JOINT_FILE).write_bytes(msgspec.json.encode(content))
    assert main(["export", str(folder), "--junit", str(file)]) == ExitCode.OK
    (found,) = cases(file)["same", "state"].result
    assert (type(found), found.message) == (Error, "no such host")


def test_missed_objective_is_a_failure(stored: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "junit.xml"
    shutil.copytree(stored / "inference", folder)
    path = folder / INFERENCE_FILE
    content = msgspec.json.decode(path.read_bytes())
    missed, unjudged = (
        {
            "metric": metric, "stat": "p99", "bound": "max", "limit": 5.0, "measured": 7.0,
            "unit": "ms", "ok": False, "reason": "too slow", "judged": judged,
        }
        for metric, judged in (("request_latency", True), ("time_to_first_token", False))
    )  # fmt: skip
    content["aiperf_svc"]["slo"] = [missed, unjudged]
    path.write_bytes(msgspec.json.encode(content))
    write_runs(file, folder, ExitCode.SLO_MISSED, "SLO missed")
    found = cases(file)
    kinds = {name: type(case.result[0]) for (_, name), case in found.items() if case.result}
    assert kinds == {
        "SLO: request_latency p99 at most 5 ms": Failure,
        "SLO: time_to_first_token p99 at most 5 ms": Error,
    }


def test_successful_sweep_has_no_failure(stored: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "sweep", tmp_path / "junit.xml"
    shutil.copytree(stored / "experiment", folder)
    for path in folder.glob("trials/*/verdict.json"):
        content = msgspec.json.decode(path.read_bytes())
        content["checks"][0] |= {"severity": "invalid", "text": "the client was too slow"}
        path.write_bytes(msgspec.json.encode(content))
    write_runs(file, folder, ExitCode.OK, "")
    assert not broken(file)
    assert "the client was too slow" in file.read_text()
    write_runs(file, folder, ExitCode.VERDICT_INVALID, "no valid trial")
    assert all(each.startswith("the client was too slow") for each in broken(file).values())
    assert set(broken(file)) == {"verdict: run"}


def test_failed_command_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    flags = ["-u", "localhost:1", "-m", "m", "--concurrency", "-1", "--junit", str(file)]
    assert main(["profile", *flags]) == ExitCode.BAD_CONFIG
    assert "--concurrency" in broken(file)["command"]


@pytest.mark.parametrize("form", ["--junit {}", "--junit={}"])
def test_misspelt_flag_replaces_the_last_file(tmp_path: Path, form: str) -> None:
    file = tmp_path / "junit.xml"
    file.write_text("of the last run")
    assert main(["run", "bench-smoke", *form.format(file).split(), "--wnat"]) == 2
    assert "--wnat is not a flag" in broken(file)["command"]


def test_unexpected_error_replaces_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(_args: object) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr(cli, "work_of", lambda _name: work)
    file = tmp_path / "junit.xml"
    file.write_text("of the last run")
    assert main(["export", str(tmp_path), "--junit", str(file)]) == ExitCode.ERROR
    assert "unexpected RuntimeError: boom" in broken(file)["command"]


def test_leak_is_an_error_of_the_command(stored: Path, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    write_runs(file, stored / "inference", ExitCode.LEAKED, "left behind: pod/worker-0")
    assert broken(file)["command"] == "left behind: pod/worker-0"


def test_folder_without_results_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), "--junit", str(tmp_path / "j.xml")]) == 2
    assert "no results" in capsys.readouterr().err


def test_comparison_has_a_case_for_each_row(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    slower = Group("", side("a", (100, 101, 99)), side("b", (150, 151, 149)))
    few = Group("few", side("c", (100,)), side("d", (150,)))
    file.write_bytes(render(comparison_cases(compare_groups([slower, few]))))
    found = {suite: case.result for (suite, _), case in cases(file).items()}
    assert [type(each) for each in found["comparison"]] == [Failure]
    assert "+50.0%" in found["comparison"][0].message
    assert [type(each) for each in found["few"]] == [Error]


def test_unjudged_case_has_its_own_reason(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    failed = replace(side("c", (9,))[0], verdict=Severity.INVALID, cause="target-failing")
    group = Group("", side("a", (100, 101, 99)), [*side("b", (100, 101, 99)), failed])
    file.write_bytes(render(comparison_cases(compare_groups([group]))))
    (text,) = broken(file).values()
    assert text.startswith("left out: 1 run (target-failing). Not judged")


def test_row_without_whole_blocks_has_no_numbers(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    group = Group("", side("a", (100,), block=1), side("b", (101,), block=1))
    found = compare_groups([group], Criteria(is_paired=True))
    file.write_bytes(render(comparison_cases(found)))
    (text,) = broken(file).values()
    assert text == "fewer than 3 complete blocks: noise between blocks unknown"


def compared(file: Path, base: Path, new: Path) -> int:
    return main(["compare", str(base), str(new), "--fail-on", "worse", "--junit", str(file)])


def test_comparison_of_single_runs_keeps_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    for side_name, ttft_ms in (("base", 20.0), ("new", 30.0)):
        for seed in range(3):
            folder = tmp_path / side_name / str(seed)
            inference_run(folder, f"{side_name}-{seed}", seed=seed, ttft_ms=ttft_ms + seed / 100)
    assert compared(file, tmp_path / "base", tmp_path / "new") == ExitCode.WORSE
    worse = cases(file)
    assert "Time to First Token p99" in broken(file)
    assert worse[COMMAND, "command"].system_out == "exit code 7"
    single = (tmp_path / "base" / "0", tmp_path / "new" / "0")
    assert compared(file, *single) == ExitCode.INCOMPARABLE
    assert cases(file).keys() == worse.keys()
    assert broken(file)["Time to First Token p99"].startswith("single runs: ")


def test_text_of_a_server_stays_xml(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_bytes(render([Case("a", "b", "]]><x>\x00\x1b[31m & \n\ud800 second")]))
    (found,) = cases(file).values()
    assert "]]><x>" in found.result[0].message


def test_check_of_all_nodes_together_is_a_case(tmp_path: Path) -> None:
    slow = CheckResult(check="mpi_bandwidth", verdict=Verdict.FAIL, value=1.0, reason="too slow")
    good = NodeResult(node="a", verdict=Verdict.PASS, checks=())
    found = Qualification(
        result="unfit", stages=(), checks=(), nodes=(good,), paths=(), all=(slow,), pairs=()
    )
    (tmp_path / "qualify.json").write_bytes(json_file(found))
    file = tmp_path / "junit.xml"
    assert main(["export", str(tmp_path), "--junit", str(file)]) == ExitCode.OK
    assert broken(file) == {"mpi_bandwidth": "too slow"}


def test_broken_verdict_is_named(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stored / "inference", folder)
    (folder / "verdict.json").write_text("{")
    assert main(["export", str(folder), "--junit", str(tmp_path / "j.xml")]) == ExitCode.BAD_CONFIG
    assert f"{folder / 'verdict.json'}: broken" in capsys.readouterr().err
