"""Runs are read from their folders. Each problem is one line and exit code 2."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.comparison.run_folders import find_runs, read_runs, with_requests
from aiperf_svc.adapters.storage.answers_file import write_answers
from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.adapters.storage.tool_artifacts import write_run
from aiperf_svc.cli.main import main
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.quality.gate import Answer, graded, score
from aiperf_svc.core.quality.questions import Grader, Question
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.records import Flag
from tests.support import fake_run, fake_steps
from tests.support.fake_results import DATASET, throttled
from tests.support.runs_to_compare import compare_folders as compare
from tests.support.runs_to_compare import inference_run

TTFT = RowKey("time_to_first_token", "p99")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three runs a side. Those of `new` have a longer time to first token."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        inference_run(root / "base" / str(seed), f"base-{seed}", seed=seed)
        inference_run(root / "new" / str(seed), f"new-{seed}", seed=10 + seed, ttft_ms=40.0)
    return root


def test_folder_is_replaced_by_its_runs(runs: Path) -> None:
    assert find_runs([runs / "base"]) == [runs / "base" / str(place) for place in range(3)]
    assert find_runs([runs / "new" / "1"]) == [runs / "new" / "1"]


def test_another_name_of_a_run_counts_once(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "base" / "1", tmp_path / "night")
    (tmp_path / "good").symlink_to("night")
    (tmp_path / "other").symlink_to(runs / "base" / "0")
    assert find_runs([tmp_path]) == [tmp_path / "night", tmp_path / "other"]


def test_values_come_from_results_and_parts_from_records(runs: Path) -> None:
    (run,) = with_requests(read_runs([runs / "base" / "0"]), batches=True, curves=True)
    content = json.loads((runs / "base" / "0" / "profile_export_aiperf.json").read_text())
    assert run.values[TTFT].value == content["time_to_first_token"]["p99"]
    assert run.values[TTFT].count == 2_000
    assert len(run.values[TTFT].batches) == 10
    assert np.mean(run.values[TTFT].batches) == pytest.approx(run.values[TTFT].value, rel=0.05)
    shares, values = run.curves["time_to_first_token"]
    middle = values[np.searchsorted(shares, 0.5)]
    assert middle == pytest.approx(content["time_to_first_token"]["p50"], rel=0.01)


def test_distributions_exclude_abandoned_requests_like_the_results(tmp_path: Path) -> None:
    rows = fake_run.closed_loop(requests=2_000)
    # Of clients that leave early, only those with fast responses complete.
    leaving = np.arange(len(rows)) % 2 == 0
    rows["flags"][leaving] |= np.uint16(Flag.ABANDONS)
    rows["first_token_wall_ns"][leaving] = rows["start_wall_ns"][leaving] + 1
    columns = fake_run.columns_of(rows)
    write_all(tmp_path, summarise(columns, None, fake_run.context(rows)), columns)
    (run,) = with_requests(read_runs([tmp_path]), batches=True, curves=True)
    least = json.loads((tmp_path / "profile_export_aiperf.json").read_text())[TTFT.tag]["min"]
    assert run.curves[TTFT.tag][1].min() == pytest.approx(least)
    assert least > 1


def test_slower_side_is_worse_and_can_fail_command(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = compare(capsys, runs / "base", runs / "new")
    assert code == 0
    assert "Time to First Token p99 (ms)" in text
    assert "worse" in text
    assert compare(capsys, runs / "base", runs / "new", "--fail-on", "worse")[0] == 7
    assert compare(capsys, runs / "new", runs / "base", "--fail-on", "worse")[0] == 0


def test_run_without_results_cannot_pass_a_gate(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    shutil.copytree(runs / "new", new)
    (new / "notes").mkdir()
    assert compare(capsys, new, runs / "base", "--fail-on", "worse")[0] == 0
    (new / "9" / "logs").mkdir(parents=True)
    code, text, _ = compare(capsys, new, runs / "base", "--fail-on", "worse")
    assert code == 8
    assert f"left out: {new / '9'}, failed: it has no results" in text


@pytest.mark.parametrize("name", ["experiment.json", "joint.json"])
def test_experiment_beside_runs_is_named(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    shutil.copytree(runs / "new", new)
    (new / "sweep").mkdir()
    (new / "sweep" / name).write_text("{}")
    code, text, _ = compare(capsys, new, runs / "base", "--fail-on", "worse")
    assert code == 0
    assert f"left out: {new / 'sweep'}, results of several runs" in text


def joint_of(folder: Path, **members: Path) -> Path:
    """Write the results of several targets whose runs these are."""
    for name, run in members.items():
        shutil.copytree(run, folder / name)
    (folder / "joint.json").write_text("{}")
    return folder


def test_targets_are_compared_one_by_one(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = runs / "base" / "0", runs / "new" / "0"
    base = joint_of(tmp_path / "base", a=one, b=other)
    new = joint_of(tmp_path / "new", a=other, b=one)
    (new / "b" / "profile_export_aiperf.json").unlink()
    (new / "b" / "logs").mkdir()
    code, text, _ = compare(capsys, base, new, "--json")
    found = json.loads(text)
    assert code == 0
    (group,) = found["groups"]
    assert group["name"] == "a"
    (row,) = (r for r in group["rows"] if r["key"] == {"tag": TTFT.tag, "stat": "p99"})
    assert (row["base"]["n"], row["new"]["n"]) == (1, 1)
    assert 0.25 < row["delta"] < 0.45
    (skipped,) = found["skipped"]
    assert skipped["name"] == "b"


def test_targets_are_not_repetitions_of_a_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joint = joint_of(tmp_path / "joint", a=runs / "base" / "0", b=runs / "new" / "0")
    assert compare(capsys, joint, runs / "base")[0] == ExitCode.BAD_CONFIG
    for command in ("history --metric request_throughput", "verify --rules agentx-2026-08"):
        assert main([*command.split(), str(joint)]) == ExitCode.BAD_CONFIG
        assert "results of several runs; name the folder" in capsys.readouterr().err


def test_several_folders_are_compared_with_to(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [[runs / side / str(place) for place in range(3)] for side in ("base", "new")]
    code, text, _ = compare(capsys, *sides[0], "--to", *sides[1], "--json")
    found = json.loads(text)
    assert code == 0
    assert len(found["base"]["runs"]) == len(found["new"]["runs"]) == 3
    row = next(row for row in found["rows"] if row["key"] == {"tag": TTFT.tag, "stat": "p99"})
    assert (row["word"], row["new"]["n"]) == ("worse", 3)
    assert 0.25 < row["low"] < row["delta"] < row["high"] < 0.45


def test_too_few_runs_cannot_pass_a_gate(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = compare(
        capsys, runs / "base" / "0", runs / "base" / "1", "--fail-on", "worse"
    )
    assert code == 8
    assert "single runs: run-to-run noise unknown" in text
    assert "compare at least 3 runs on each side" in error


def test_markdown_has_a_table_of_the_rows(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = compare(capsys, runs / "base", runs / "new", "--markdown")
    assert code == 0
    row = next(line for line in text.splitlines() if line.startswith("| Time to First Token p50"))
    assert row.endswith("| worse |")


def test_the_page_has_the_distributions_of_both_sides(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "c.html"
    assert compare(capsys, runs / "base" / "0", runs / "new" / "0", "--html", page)[0] == 0
    html = page.read_text()
    assert html.count('class="line a"') == 2 * 3
    assert html.count('class="line b"') == 2 * 3
    assert "<script" not in html


def workload_run(folder: Path, run_id: str, values: list[float]) -> Path:
    """Write the artifact folder of a fake tool run with a repetition for each value."""
    records = [
        fake_steps.record(fake_steps.reading(value), number=index, repetition=index)
        for index, value in enumerate(values, start=1)
    ]
    folder.mkdir(parents=True)
    write_run(folder, fake_steps.result(*records, run_id=run_id), ())
    return folder


def test_tool_runs_are_compared_by_their_averages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in range(3):
        workload_run(tmp_path / "base" / str(place), f"base-{place}", [9.40e9 + place * 1e7])
        workload_run(tmp_path / "new" / str(place), f"new-{place}", [8.20e9 + place * 1e7])
    page = tmp_path / "page.html"
    sides = (tmp_path / "base", tmp_path / "new")
    code, text, _ = compare(capsys, *sides, "--json", "--fail-on", "worse", "--html", page)
    rows = {row["key"]["tag"]: row for row in json.loads(text)["rows"]}
    assert code == 7
    assert rows["bandwidth"]["word"] == "worse"
    assert rows["bandwidth"]["base"]["mean"] == pytest.approx(9.41e9)
    assert rows["rtt"]["word"] == "same"
    assert page.read_text().count('class="line b"') == 2 * 4


def test_parts_of_a_tool_run_are_its_repetitions(tmp_path: Path) -> None:
    (run,) = read_runs([workload_run(tmp_path / "run", "one", [9e9, 8e9, 7e9])])
    assert run.values[RowKey("bandwidth")].batches == (9e9, 8e9, 7e9)


def test_a_tool_and_a_server_cannot_be_compared(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = workload_run(tmp_path / "run", "one", [9e9])
    code, _, error = compare(capsys, runs / "base", folder)
    assert code == 8
    assert "runs of different kinds" in error


BROKEN = {
    "profile_export_aiperf.json": [
        (b"{", "broken"),
        (b"[]", "not as this version writes it"),
        (b'{"schema_version": "9"}', "its schema is '9', expected '1.4'"),
        (b'{"schema_version": "1.4", "aiperf_version": "0.13"}', "written by AIPerf 0.13"),
        (b'{"schema_version": "1.4", "aiperf_svc": {}}', "not as this version writes it"),
        (b'{"schema_version": "1.4", "aiperf_svc": 1}', "not as this version writes it"),
    ],
    "results.json": [
        (b"{", "broken"),
        (b"{}", "its schema is '', expected 'run-result/1'"),
        (b'{"schema_version": "run-result/9", "version": "7.0"}', "that wrote it (7.0)"),
        (b'{"schema_version": "run-result/1"}', "not as this version writes it"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "text"), [(name, *each) for name, cases in BROKEN.items() for each in cases]
)
def test_a_broken_or_foreign_file_is_one_line(
    name: str,
    content: bytes,
    text: str,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(content)
    code, _, error = compare(capsys, runs / "base", tmp_path)
    assert code == 2
    assert error.count("\n") == 1
    assert f"{tmp_path / name}: " in error
    assert text in error


def test_folders_without_a_run_are_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, text in ((tmp_path, "no run; expected"), (tmp_path / "x", "no such folder")):
        code, _, error = compare(capsys, runs / "base", folder)
        assert (code, error.count("\n")) == (2, 1)
        assert text in error


def test_changed_records_are_refused(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = inference_run(tmp_path / "run", "changed")
    with (folder / "records.parquet").open("ab") as file:
        file.write(b"x")
    code, _, error = compare(capsys, runs / "base" / "0", folder)
    assert code == 2
    assert "records.parquet: missing, or not the file that the manifest lists" in error


def test_a_wrong_number_of_folders_is_explained(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([runs / "base"], [runs / "base"] * 3):
        code, _, error = compare(capsys, *words)
        assert code == 2
        assert "--to" in error


def test_a_bad_tolerance_is_explained(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = compare(capsys, runs / "base", runs / "new", "--tolerance", "5")
    assert code == 2
    assert "expected a share" in error


def test_prompt_variants_of_trials_are_no_difference(tmp_path: Path) -> None:
    for number in (1, 2):
        path = inference_run(tmp_path / str(number), f"r-{number}") / "profile_export_aiperf.json"
        content = json.loads(path.read_text())
        ours = content["aiperf_svc"]
        ours["config"].setdefault("dataset", {})["variant"] = number
        checksums = {"sha256": f"of {number}", "source_sha256": "of the file"}
        ours["topology"]["dataset"] = DATASET | checksums
        path.write_text(json.dumps(content))
    first, second = read_runs([tmp_path / "1", tmp_path / "2"])
    assert first.facts == second.facts
    assert first.facts["dataset.built"] == "of the file"


def steady_run(folder: Path, run_id: str, steady_state: dict[str, str]) -> Path:
    """Write a run with this rule for its steady state."""
    rows = fake_run.closed_loop(requests=2_000)
    columns = fake_run.columns_of(rows)
    load = {"concurrency": 20, "requests": 2_000, "steady_state": steady_state}
    context = fake_run.context(rows, run_id=run_id, config=fake_run.config(**load))
    folder.mkdir(parents=True)
    write_all(folder, summarise(columns, None, context), columns)
    return folder


def test_steady_states_are_compared_beside_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [steady_run(tmp_path / name, name, {"skip_start": "10%"}) for name in ("a", "b")]
    code, out, _ = compare(capsys, *sides)
    assert code == 0
    assert "Request Latency p99" in out
    assert "Request Latency, steady state p99" in out


def test_other_rules_of_the_steady_state_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = steady_run(tmp_path / "base", "base", {"skip_start": "10%"})
    new = steady_run(tmp_path / "new", "new", {"concurrency": "95%"})
    code, _, err = compare(capsys, base, new)
    assert code == 8
    assert "without the first 10%" in err
    assert "at least 95% of the peak concurrency" in err


def run_with_answers(folder: Path, texts: list[str], sha256: str = "0") -> Path:
    """Write a run whose quality gate has these answers."""
    rows = fake_run.closed_loop(requests=2_000)
    columns = fake_run.columns_of(rows)
    questions = [Question(prompt="?", grader=Grader.EXACT, expected="yes")] * len(texts)
    answers = [Answer(question=n, repeat=0, text=text) for n, text in enumerate(texts)]
    answers = graded(questions, answers)
    quality = score(
        ["exact"] * len(texts),
        answers,
        file="q.jsonl",
        sha256=sha256,
        concurrency=1,
        min_score=None,
    )
    context = fake_run.context(rows, run_id=folder.name, quality=quality)
    folder.mkdir(parents=True)
    write_answers(folder, answers)
    write_all(folder, summarise(columns, None, context), columns)
    return folder


def test_checks_of_the_system_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = fake_run.closed_loop(requests=2_000)
    columns = fake_run.columns_of(rows)
    for name, share in (("base", 0.0), ("new", 0.2)):
        summary = summarise(columns, None, fake_run.context(rows, run_id=name))
        (tmp_path / name).mkdir()
        write_all(tmp_path / name, replace(summary, system=throttled(share)), columns)
    _, out, _ = compare(capsys, tmp_path / "base", tmp_path / "new")
    assert re.search(r"system +valid +degraded: gpu_throttling", out)


def test_answers_to_the_same_questions_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = run_with_answers(tmp_path / "base", ["yes", "the river"])
    new = run_with_answers(tmp_path / "new", ["yes", "the road"])
    code, out, _ = compare(capsys, base, new)
    assert code == 0
    assert "Quality Score (%)" in out
    assert "answers: 1 of 2 equal on both sides (50.0%); others differ after 5 characters" in out
    other = run_with_answers(tmp_path / "other", ["yes", "the road"], sha256="1")
    assert "answers:" not in compare(capsys, base, other)[1]
