"""The files of a tool benchmark contain its whole result and are in its manifest."""

import csv
import errno
import hashlib
import json
from pathlib import Path

import pytest
import yaml
from arro3.io import read_parquet

from aiperf_svc.adapters.exports import result_files
from aiperf_svc.adapters.exports.manifest import build_manifest, check_entry
from aiperf_svc.adapters.storage import tool_artifacts as export
from aiperf_svc.adapters.storage.tool_artifacts import RawOutput, write_run
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import Series
from aiperf_svc.core.results.tool_result import SCHEMA, STATS, ToolResult
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.steps import StepOutput
from aiperf_svc.workloads.command.workload import CommandSpec
from tests.support import fake_steps as fake

SERIES = Series(name="bandwidth", unit="bit/s", times_s=(0.5, 1.5), values=(1e9, 2e9), label="b")


@pytest.fixture
def result() -> ToolResult:
    reading = fake.reading(series=(SERIES,))
    return fake.result(
        fake.record(reading), fake.record(fake.reading(9.0e9), number=2, repetition=2)
    )


def test_manifest_has_all_files_and_raw_output(tmp_path: Path, result: ToolResult) -> None:
    raw = tmp_path / "raw" / "001-x" / "rank-0"
    raw.mkdir(parents=True)
    (raw / "stdout").write_text("9.4 Gbit/s")
    manifest = write_run(tmp_path, result, ())
    assert [entry.name for entry in manifest.files] == [
        "config.yaml",
        "raw/001-x/rank-0/stdout",
        "report.html",
        "results.csv",
        "results.json",
        "series.parquet",
        "verdict.json",
    ]
    for entry in manifest.files:
        content = (tmp_path / entry.name).read_bytes()
        assert entry.sha256 == hashlib.sha256(content).hexdigest()


def piece(file: str) -> StepOutput:
    return StepOutput("run", "rank-0", 1, 1, 0, 0, 0, file, b"raw", is_last=False)


@pytest.mark.parametrize("file", ["{}/x", "/{}/x", "../../../../{}/x", "./a//../{}/x"])
def test_names_of_raw_output_stay_in_its_folder(tmp_path: Path, file: str) -> None:
    raw = RawOutput(tmp_path / "raw")
    raw.add(piece(file.format(tmp_path / "elsewhere")))
    raw.close()
    assert raw.error == ""
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert written.is_relative_to(tmp_path / "raw" / "step-001" / "rank-0" / "command-0")
    assert written.read_bytes() == b"raw"


@pytest.mark.parametrize("length", [252, 300])
def test_unusable_name_loses_only_the_raw_output(tmp_path: Path, length: int) -> None:
    raw = RawOutput(tmp_path / "raw")
    for file in ("a" * length, "stdout", "stdout/of-a-tool", "stderr"):
        raw.add(piece(file))
    raw.close()
    assert "name too long" in raw.error
    assert {path.name for path in tmp_path.rglob("std*")} == {"stdout", "stderr"}
    assert not any("a" * 200 in each.name for each in build_manifest(tmp_path, "run").files)


def test_file_that_lost_a_piece_gets_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    class Disk:
        def write(self, data: bytes) -> None:
            written.append(data)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda *_: Disk())
    raw = RawOutput(tmp_path)
    for _ in range(2):
        raw.add(piece("stdout"))
    assert "No space left" in raw.error
    assert written == [b"raw"]


def test_raw_output_can_be_fetched_whatever_its_name(tmp_path: Path) -> None:
    raw = RawOutput(tmp_path)
    names = ("a\0b/c\u00a0d\n", "e.part/f.part")
    for name in names:
        raw.add(piece(name))
    raw.close()
    assert raw.error == ""
    entries = build_manifest(tmp_path, "run").files
    assert len(entries) == len(names)
    for entry in entries:
        check_entry(entry)


def test_step_whose_folder_exists_loses_only_its_name(tmp_path: Path) -> None:
    raw, record = RawOutput(tmp_path / "raw"), fake.record()
    taken = tmp_path / "raw" / "001-node-0-to-node-1" / "other"
    taken.mkdir(parents=True)
    raw.add(piece("stdout"))
    raw.end_step(record)
    assert raw.error == f"cannot write {taken.parent}: Directory not empty"
    file = tmp_path / "raw" / "step-001" / "rank-0" / "command-0" / "stdout"
    assert file.read_bytes() == b"raw"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, result: ToolResult) -> None:
    blocked = tmp_path / "artifacts"
    blocked.write_text("a file in the way")
    with pytest.raises(EnvironmentProblem, match=str(blocked)):
        write_run(blocked, result, ())


def test_results_json_is_the_whole_result(result: ToolResult) -> None:
    content = result_files.render(result)
    assert result_files.decode(content) == result
    assert json.loads(content)["schema_version"] == SCHEMA


def test_the_config_can_be_run_again(result: ToolResult) -> None:
    again = yaml.safe_load(export.render_config(result))
    parsed = WorkloadConfig[CommandSpec].model_validate(again)
    assert parsed == fake.config(repetitions=3)


def test_csv_has_rows_of_statistics_and_values(result: ToolResult) -> None:
    rows = list(csv.DictReader(export.render_csv(result).decode().splitlines()))
    bandwidth = [row for row in rows if row["metric"] == "bandwidth"]
    assert [row["statistic"] for row in bandwidth] == [*STATS, "value", "value"]
    assert bandwidth[0]["value"] == "9200000000.0"
    assert [(row["repetition"], row["value"]) for row in bandwidth[len(STATS) :]] == [
        ("1", "9400000000.0"),
        ("2", "9000000000.0"),
    ]


def test_series_have_a_row_for_each_point(tmp_path: Path, result: ToolResult) -> None:
    path = tmp_path / "series.parquet"
    export.write_series(path, result)
    table = read_parquet(path).read_all()
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    assert columns == {
        "step": ["node-0 to node-1"] * 2,
        "repetition": [1, 1],
        "series": ["bandwidth"] * 2,
        "label": ["b", "b"],
        "unit": ["bit/s"] * 2,
        "time_s": [0.5, 1.5],
        "value": [1e9, 2e9],
    }


def test_a_run_without_series_has_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "series.parquet"
    export.write_series(path, fake.result())
    assert read_parquet(path).read_all().num_rows == 0
