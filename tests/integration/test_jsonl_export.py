"""Lines exported from records.parquet equal those written with the results."""

import json
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.cli.main import main
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.in_one_loop import stack

ALL = "profile_export_all.jsonl"


def lines(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    by_id = {line["metadata"]["x_request_id"]: line for line in found}
    assert len(by_id) == len(found)
    return by_id


def without_unrecorded_keys(line: dict[str, Any]) -> dict[str, Any]:
    assert line["metadata"].pop("record_processor_id").startswith("record-processor-")
    line["metadata"]["record_processor_id"] = ""
    line["metrics"].pop("inter_chunk_latency", None)
    return line


async def run_once(folder: Path, *, model: str = "mock", **load: Any) -> Path:
    with running(MockServerConfig(ttft="2ms", itl="1ms", tokens=5)) as mock:
        config = {
            "endpoint": {"url": mock.url, "model": model, "streaming": True},
            "load": load,
            "dataset": {"entries": 20, "input_tokens": {"mean": 20}},
        }
        async with stack(config, folder, workers=2, processors=2) as run:
            if load.get("duration"):
                await run.wait_until(lambda: run.records_manager.status().completed > 200)
                run.records_manager.cancel("enough")
            await run.results()
    return folder / "artifacts"


@pytest.mark.parametrize(
    ("model", "load"),
    [
        ("mock", {"concurrency": 8, "requests": 150, "warmup": {"requests": 20}}),
        ("mock-error-429", {"concurrency": 3, "requests": 9}),
        # Some of these become due but are never sent.
        ("mock", {"request_rate": 500, "concurrency": 2, "duration": "10m"}),
    ],
)
async def test_exported_lines_equal_the_runs(
    tmp_path: Path, model: str, load: dict[str, Any]
) -> None:
    folder = await run_once(tmp_path, model=model, **load)
    assert main(["export", str(folder), "--jsonl"]) == 0
    written = lines(folder / "profile_export.jsonl")
    exported = lines(folder / ALL)
    assert exported == {request: without_unrecorded_keys(line) for request, line in written.items()}
    assert any(line["metrics"] for line in exported.values())


async def test_manifest_lists_the_exported_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = await run_once(tmp_path, concurrency=2, requests=10)
    assert main(["export", str(folder), "--jsonl"]) == 0
    assert f"{ALL}: 10 requests" in capsys.readouterr().out
    listed = json.loads((folder / "manifest.json").read_bytes())["files"]
    assert ALL in {entry["name"] for entry in listed}
    other = tmp_path / "elsewhere.jsonl"
    assert main(["export", str(folder), "--jsonl", "--output", str(other)]) == 0
    assert other.read_bytes() == (folder / ALL).read_bytes()


async def test_folder_without_a_finished_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), "--jsonl"]) == 2
    assert "not the folder of a finished run" in capsys.readouterr().err
    folder = await run_once(tmp_path, concurrency=2, requests=10)
    records = folder / "records.parquet"
    records.write_bytes(records.read_bytes()[:-8])
    assert main(["export", str(folder), "--jsonl"]) == 1
    assert "not the file that the manifest lists" in capsys.readouterr().err
    assert not (folder / ALL).exists()
