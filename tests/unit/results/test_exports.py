"""The files of a run have AIPerf's format, are complete or absent, and can be verified."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from arro3.io import read_parquet

from aiperf_svc.adapters.exports import aiperf_exports
from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.exports.parquet_export import check_records, read_records, write_records
from aiperf_svc.adapters.exports.result_files import render_verdict
from aiperf_svc.adapters.report import page
from aiperf_svc.adapters.storage import artifacts, atomic_files
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.percentiles import QUANTILES
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.outcomes import ErrorKind, Phase
from aiperf_svc.protocol.messages.records import ErrorSample
from aiperf_svc.protocol.records import METRIC_DTYPE
from tests.support import fake_run
from tests.support.fake_results import as_json

SAMPLE = Path(__file__).parents[2] / "data" / "aiperf_sample"
OURS = {"p99_9", "unreliable", "censored_share", "beyond", "relative_error"}


GAPS_NS = np.random.default_rng(3).lognormal(np.log(5e6), 0.4, 1_900).astype(np.int64)


@pytest.fixture(scope="module")
def summary() -> Summary:
    rows = fake_run.closed_loop(requests=100, concurrency=10)
    errors = (
        ErrorSample(Phase.PROFILING, int(ErrorKind.STATUS), 503, "overloaded", 2),
        ErrorSample(Phase.PROFILING, int(ErrorKind.TIMEOUT), 0, "no response within 5 s", 9),
        ErrorSample(Phase.WARMUP, int(ErrorKind.STATUS), 503, "overloaded", 50),
        ErrorSample(Phase.PROFILING, int(ErrorKind.STATUS), 503, "overloaded", 1),
    )
    config = fake_run.config(concurrency=10, requests=100)
    gaps = Histogram()
    gaps.add(GAPS_NS)
    return summarise(
        fake_run.columns_of(rows), gaps, fake_run.context(rows, config=config, errors=errors)
    )


@pytest.fixture(scope="module")
def exported(summary: Summary) -> dict[str, Any]:
    return as_json(result_of(summary))


@pytest.fixture(scope="module")
def sample() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SAMPLE / "profile_export_aiperf.json").read_text())
    return found


def test_every_metric_has_aiperfs_keys_and_units(
    exported: dict[str, Any], sample: dict[str, Any]
) -> None:
    shared = [tag for tag in CATALOG if tag in sample]
    assert len(shared) >= 45
    for tag in shared:
        ours = {key: value for key, value in exported[tag].items() if key not in OURS}
        assert list(ours) == list(sample[tag]), tag
        assert ours["unit"] == sample[tag]["unit"]
        assert all(type(ours[key]) is type(sample[tag][key]) for key in ours), tag


def test_everything_else_has_aiperfs_shape(
    exported: dict[str, Any], sample: dict[str, Any]
) -> None:
    metrics = {tag for tag, value in sample.items() if isinstance(value, dict) and "avg" in value}
    for key in set(sample) - metrics - {"telemetry_data"}:
        assert type(exported[key]) is type(sample[key]), key
    assert exported["schema_version"] == sample["schema_version"]
    assert set(sample["run_info"]) <= set(exported["run_info"])
    assert len(exported["start_time"]) == len(sample["start_time"])
    for key in ("models", "endpoint", "datasets", "phases", "artifacts", "tokenizer"):
        assert type(exported["input_config"][key]) is type(sample["input_config"][key])
    assert exported["input_config"]["models"] == sample["input_config"]["models"]
    assert exported["input_config"]["phases"] == sample["input_config"]["phases"]
    assert exported["input_config"]["endpoint"] == sample["input_config"]["endpoint"]


def test_aiperfs_percentiles_stay_numbers_and_name_thin_ones() -> None:
    rows = fake_run.closed_loop(requests=40, concurrency=4)
    found = as_json(result_of(fake_run.results(rows)))
    assert found["request_latency"]["p99"] > 0
    assert "p99" in found["request_latency"]["unreliable"]
    assert found["intended_request_latency"]["p99"] is None


def test_own_results_have_verdict_accounts_and_config(exported: dict[str, Any]) -> None:
    ours = exported["aiperf_svc"]
    assert ours["verdict"] in ("valid", "degraded", "invalid")
    assert ours["accounts"]["issued"] == 100
    BenchmarkConfig.model_validate(ours["config"])


def test_pooled_gaps_state_the_error_of_percentiles(exported: dict[str, Any]) -> None:
    found, gaps_ms = exported["inter_chunk_latency"], GAPS_NS / 1e6
    for stat in ("min", "max", "sum"):
        assert found[stat] == pytest.approx(getattr(gaps_ms, stat)())
    assert found["avg"] == pytest.approx(gaps_ms.mean())
    assert found["std"] == pytest.approx(gaps_ms.std())
    for name, q in QUANTILES.items():
        true = np.quantile(gaps_ms, q)
        assert abs(found[name] - true) <= found["relative_error"] * true, name


def test_errors_are_summed_by_kind_status_and_message(exported: dict[str, Any]) -> None:
    assert exported["error_summary"] == [
        {
            "error_details": {"code": None, "type": "Timeout", "message": "no response within 5 s"},
            "count": 9,
        },
        {"error_details": {"code": 503, "type": "Status", "message": "overloaded"}, "count": 3},
    ]


def test_records_without_a_manifest_are_not_read(tmp_path: Path) -> None:
    records = tmp_path / "records.parquet"
    records.write_bytes(b"PAR1")
    with pytest.raises(EnvironmentProblem, match=r"it has no manifest\.json"):
        check_records(records)


def _blocks(text: str) -> list[list[list[str]]]:
    """Return the CSV's blocks, which are separated by empty lines."""
    blocks = (block for block in text.strip().split("\n\n") if block.strip())
    return [list(csv.reader(block.splitlines())) for block in blocks]


def test_the_csv_has_aiperfs_two_blocks(summary: Summary) -> None:
    ours = _blocks(aiperf_exports.render_csv(summary).decode())
    theirs = _blocks((SAMPLE / "profile_export_aiperf.csv").read_text())
    assert len(ours) == 2
    for block in (0, 1):
        assert ours[block][0] == theirs[block][0]
        known = {row[0]: row for row in theirs[block]}
        for row in ours[block]:
            assert len(row) == len(ours[block][0])
            if row[0] in known:
                empty = [cell == "" for cell in row]
                assert empty == [cell == "" for cell in known[row[0]]], row[0]
        shared = [row[0] for row in ours[block] if row[0] in known]
        assert shared == [name for name in known if name in shared], "order"
    assert {len(cell.partition(".")[2]) for row in ours[0][1:] for cell in row[1:] if cell} == {2}


def test_small_numbers_keep_their_digits_in_csv(summary: Summary) -> None:
    numbers = {"cost_per_million_output_tokens": 0.0004484, "gpu_joules": 1234.567}
    text = aiperf_exports.render_csv(msgspec.structs.replace(summary, scalars=numbers)).decode()
    assert dict(_blocks(text)[1][1:]) == {
        "Cost per M Output Tokens (USD)": "0.0004484",
        "GPU Energy (J)": "1234.57",
    }


def test_the_verdict_lists_reasons_and_all_checks(summary: Summary) -> None:
    found = json.loads(render_verdict(summary.verdict, summary.slo))
    assert found["verdict"] == summary.verdict.verdict
    assert {"check", "measured", "limit", "unit", "remedy", "severity", "ok"} <= set(
        found["checks"][0]
    )
    assert [reason["ok"] for reason in found["reasons"]] == [False] * len(found["reasons"])


def test_parquet_preserves_every_column_of_both_phases(tmp_path: Path) -> None:
    rows = fake_run.closed_loop(requests=3_000, error_share=0.1)
    rows["phase"][:100] = Phase.WARMUP
    rows["input_tokens"][5] = -1
    path = tmp_path / "records.parquet"
    write_records(path, fake_run.columns_of(rows), fake_run.context(rows))
    found = read_records(path)
    assert list(found) == list(METRIC_DTYPE.names or ())
    for name, column in found.items():
        assert column.dtype == METRIC_DTYPE[name]
        assert np.array_equal(column, rows[name]), name


def test_a_run_without_records_gives_back_empty_columns(tmp_path: Path) -> None:
    rows = fake_run.make_rows(0)
    write_records(tmp_path / "r", fake_run.columns_of(rows), fake_run.context(rows))
    found = read_records(tmp_path / "r")
    assert {name: len(column) for name, column in found.items()} == dict.fromkeys(
        METRIC_DTYPE.names or (), 0
    )
    assert all(column.dtype == METRIC_DTYPE[name] for name, column in found.items())


def test_full_disk_is_an_error_and_no_abort() -> None:
    rows = fake_run.closed_loop(requests=200)
    with pytest.raises(OSError, match="No space left on device"):
        write_records(Path("/dev/full"), fake_run.columns_of(rows), fake_run.context(rows))


def test_results_can_be_computed_again_from_the_parquet(tmp_path: Path, summary: Summary) -> None:
    rows = fake_run.closed_loop(requests=100, concurrency=10)
    write_records(tmp_path / "records.parquet", fake_run.columns_of(rows), summary.context)
    again = summarise(read_records(tmp_path / "records.parquet"), None, summary.context)
    assert again.scalars == summary.scalars


def test_manifest_has_the_hashes_of_all_files(tmp_path: Path, summary: Summary) -> None:
    rows = fake_run.closed_loop(requests=100, concurrency=10)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").write_text("started\n")
    artifacts.write_all(tmp_path, summary, fake_run.columns_of(rows))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [entry["name"] for entry in manifest["files"]] == [
        "config.yaml",
        "logs/worker-0.log",
        "profile_export_aiperf.csv",
        "profile_export_aiperf.json",
        "records.parquet",
        "report.html",
        "verdict.json",
    ]
    for entry in manifest["files"]:
        content = (tmp_path / entry["name"]).read_bytes()
        assert entry["size"] == len(content)
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    assert not list(tmp_path.rglob("*.part"))


def test_the_written_config_is_the_config(tmp_path: Path, summary: Summary) -> None:
    artifacts.write_all(tmp_path, summary, fake_run.columns_of(fake_run.closed_loop(requests=100)))
    again = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert BenchmarkConfig.model_validate(again) == summary.context.config


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, summary: Summary) -> None:
    blocked = tmp_path / "artifacts"
    blocked.write_text("a file in the way")
    with pytest.raises(EnvironmentProblem, match=str(blocked)):
        artifacts.write_all(blocked, summary, fake_run.columns_of(fake_run.make_rows(1)))


def test_half_written_file_has_no_result_name(tmp_path: Path) -> None:
    def fail(part: Path) -> None:
        part.write_text("half of")
        raise OSError(28, "No space left on device")

    target = tmp_path / "report.html"
    target.write_text("the one before")
    with pytest.raises(EnvironmentProblem, match=r"report\.html: No space left on device"):
        atomic_files.write_atomically(target, fail)
    assert target.read_text() == "the one before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_finish_reasons_are_in_every_file(
    summary: Summary, exported: dict[str, Any], tmp_path: Path
) -> None:
    assert exported["aiperf_svc"]["finish_reasons"] == {"length": 100}
    assert "<th>length</th><td>100</td>" in page.render(summary).decode()
    rows = fake_run.closed_loop(requests=100, concurrency=10)
    path = tmp_path / "records.parquet"
    write_records(path, fake_run.columns_of(rows), summary.context)
    assert set(read_records(path)["finish_reason"].tolist()) == {int(FinishReason.LENGTH)}
    known = read_parquet(path).schema.metadata
    assert json.loads(known[b"aiperf_svc.finish_reasons"])["LENGTH"] == FinishReason.LENGTH
