"""Telemetry of whole runs: the metrics of servers and GPUs in all files."""

import asyncio
import csv
import json
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from arro3.io import read_parquet

from aiperf_svc.adapters.telemetry.pages import PageClient
from aiperf_svc.services import telemetry_reader
from tests.support.in_one_loop import WAIT_S, config, results_of, server, talks
from tests.support.scripted_server import pages, served, with_telemetry

DCGM = (Path(__file__).parents[1] / "data/telemetry/dcgm.txt").read_text()
TTFT = "time_to_first_token_seconds"
POWER = "DCGM_FI_DEV_POWER_USAGE{"


@pytest.fixture(autouse=True)
def _pages_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sure that a page is read before the load and one after it, even on a busy machine."""
    monkeypatch.setattr(telemetry_reader, "FIRST_PAGES_S", WAIT_S)
    monkeypatch.setattr(telemetry_reader, "LAST_PAGE_S", WAIT_S)


def contents(folder: Path) -> list[bytes]:
    """Return the contents of all files in a folder."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def test_telemetry_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    async def respond(request: web.Request) -> web.Response:
        keys.append(request.headers.get("Authorization", ""))
        if keys[-1] != "Bearer s3cret-token":
            raise web.HTTPUnauthorized
        return web.Response(text="up 1\n")

    monkeypatch.setenv("PAGES", "s3cret-token\n")
    async with served("/metrics", respond) as target:
        url = f"{target}/metrics"
        with server(tokens=3) as mock:
            base = config(mock.url, concurrency=2, requests=20)
            wanted = {"server_metrics": [url], "key_env": "PAGES"}
            summary = await results_of(with_telemetry(base, **wanted), tmp_path)
    sources = {each["url"]: each for each in summary["aiperf_svc"]["system"]["sources"]}
    assert sources[url]["failures"] == 0
    assert set(keys) == {"Bearer s3cret-token"}
    found = contents(tmp_path)
    assert found
    assert not [text for text in found if b"s3cret-token" in text]


async def test_broken_telemetry_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(*_given: Any, **_more: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(PageClient, "fetch", fetch)
    with server(tokens=3) as mock:
        base = config(mock.url, concurrency=2, requests=20)
        summary = await results_of(with_telemetry(base, server_metrics=[mock.url]), tmp_path)
    assert summary["request_count"]["avg"] == 20
    (source,) = summary["aiperf_svc"]["system"]["sources"]
    assert "reading has ended: a bug" in source["problem"]


async def test_files_contain_server_and_gpu_metrics(tmp_path: Path) -> None:
    def gpu_page(number: int) -> str:
        return DCGM.replace(f'{POWER}gpu="0"', f'{POWER}gpu="0",n="0"').replace(
            "} 512.345", f"}} {500 + number}"
        )

    def broken(number: int) -> str:
        return "up 1\n" if number < 3 else "<html>Bad gateway</html>"

    def restarting(number: int) -> str:
        odd = '# TYPE odd histogram\nodd_bucket 1\nodd_bucket{le="many"} 2\nodd_count 3\n'
        return f"vllm:generation_tokens_total {number % 6}\n{odd}"

    wrong = {"broken": broken, "restarting": restarting}
    async with pages(metrics=gpu_page, **wrong) as gpu_url:
        with server(ttft="120ms", itl="5ms", tokens=10, slots=3) as mock:
            settings = with_telemetry(
                config(mock.url, concurrency=4, requests=90),
                gpu_telemetry=[gpu_url],
                server_metrics=[f"{gpu_url}/{name}" for name in wrong],
                interval="200ms",
            )
            summary = await results_of(settings, tmp_path)
            truth = mock.truth()
    system = summary["aiperf_svc"]["system"]
    problems = {source["url"]: source["problem"] for source in system["sources"]}
    assert "reads failed: line 1 is not a sample: <html>" in problems.pop(f"{gpu_url}/broken")
    assert "its counters restarted" in problems.pop(f"{gpu_url}/restarting")
    assert list(problems.values()) == ["", ""]
    assert system["sources"][0]["update_interval_s"] > 0.1
    # The server has slots for three requests; the fourth user waits.
    assert 0 < system["metrics"]["server_running_requests"] <= 3
    assert 0 < system["metrics"]["server_waiting_requests"] <= 1
    client_ms = summary["time_to_first_token"]["avg"]
    assert 120 <= system["metrics"]["server_time_to_first_token"] <= client_ms
    folder = tmp_path / "artifacts"
    raw = (folder / "server_metrics_export.jsonl").read_text()
    lines = [json.loads(x) for x in raw.splitlines()]
    newest = [line for line in lines if line["endpoint_url"].startswith(mock.url)][-1]
    assert newest["metrics"]["vllm:request_success"][0]["value"] == truth["completed"]
    stats = json.loads((folder / "server_metrics_export.json").read_text())
    series = stats["metrics"]["vllm:generation_tokens"]["series"]
    (tokens,) = [each for each in series if each["endpoint_url"].startswith(mock.url)]
    # The page at the start may be read so late that it includes each user's first request.
    missing = 10 * summary["request_count"]["avg"] - tokens["stats"]["total"]
    assert missing in (0, 10, 20, 30, 40)
    blocks = (folder / "server_metrics_export.csv").read_text().split("\n\n")
    (counters,) = [block for block in blocks if ",total,rate," in block]
    rows = csv.DictReader(counters.splitlines())
    named = [row for row in rows if row["Metric"] == "vllm:generation_tokens"]
    (row,) = [row for row in named if row["Endpoint"] in mock.url]
    written = {name: float(row[name]) for name in tokens["stats"]}
    assert written == pytest.approx(tokens["stats"], rel=1e-10)
    wide = read_parquet(folder / "server_metrics_export.parquet").read_all()
    names = ("metric_name", "bucket_le", "timestamp_ns", "bucket_count", "count", "engine")
    columns = [[value.as_py() for value in wide.column(name)] for name in names]  # type: ignore[attr-defined]
    ttft = [row for row in zip(*columns, strict=True) if row[0] == f"vllm:{TTFT}"]
    whole = [row for row in ttft if row[1] == "+Inf"]
    assert len({row[2] for row in whole}) == len(whole) > 2
    assert [row[3] for row in whole] == [row[4] for row in whole]
    # The first page was read before the load, so the server's count includes every request.
    start_s = datetime.fromisoformat(summary["start_time"]).timestamp()
    assert lines[0]["timestamp_ns"] / 1e9 < start_s
    assert 0.8 * truth["completed"] < max(row[4] for row in whole) <= truth["completed"]
    assert {row[5] for row in ttft} == {"0"}
    gpus = [json.loads(x) for x in (folder / "gpu_telemetry_export.jsonl").read_text().splitlines()]
    assert {line["gpu_uuid"] for line in gpus} == {"GPU-6f1c0b40", "GPU-6f1c0b41"}
    assert len({line["telemetry_data"]["gpu_power_usage"] for line in gpus}) > 5
    table = read_parquet(folder / "telemetry.parquet").read_all()
    assert set(table.column_names) == {"source", "metric", "labels", "type", "wall_ns", "value"}
    sources = {str(source) for source in table.column("source").to_numpy()}
    assert {"aiperf-svc", f"{mock.url}/metrics", f"{gpu_url}/metrics"} <= sources
    report = (folder / "report.html").read_text()
    assert "Running on the server" in report
    assert "CPU of the busiest service" in report
    assert (folder / "metrics.om").read_text().endswith("# EOF\n")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert "metrics.om" in json.dumps(files)


async def test_pages_are_read_between_warmup_and_load(tmp_path: Path) -> None:
    with server(tokens=3) as mock:
        base = config(mock.url, concurrency=2, requests=20, warmup={"requests": 10})
        summary = await results_of(with_telemetry(base, interval="30s"), tmp_path)
    (source,) = summary["aiperf_svc"]["system"]["sources"]
    assert source["reads"] == 3, "before the warmup, before the load, after it"


async def test_last_samples_equal_the_totals_of_the_results(tmp_path: Path) -> None:
    # A worker counts a response with invalid JSON as complete.
    with server(tokens=3, malformed_rate=0.3) as mock:
        dataset = talks(tmp_path, *[{"text": "Go on."}] * 3, count=50)
        base = config(mock.url, dataset=dataset, concurrency=4, requests=50)
        summary = await results_of(with_telemetry(base), tmp_path)
    last = {}
    for line in (tmp_path / "artifacts" / "metrics.om").read_text().splitlines():
        if line.startswith("aiperf_requests_"):
            last[line.partition("{")[0]] = float(line.rpartition("} ")[2].split()[0])
    errors = sum(entry["count"] for entry in summary["error_summary"])
    assert errors
    assert last == {
        "aiperf_requests_completed_total": summary["request_count"]["avg"],
        "aiperf_requests_errored_total": errors,
        "aiperf_requests_in_flight": 0,
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_makes_blocks_of_a_runs_metrics(tmp_path: Path) -> None:
    with server(ttft="10ms", tokens=3) as mock:
        settings = with_telemetry(config(mock.url, concurrency=2, requests=80), interval="100ms")
        await results_of(settings, tmp_path)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
    files = [str(tmp_path / "artifacts" / "metrics.om"), str(tmp_path / "blocks")]
    process = await asyncio.create_subprocess_exec(*command, *files, stderr=subprocess.PIPE)
    _, complaints = await process.communicate()
    assert process.returncode == 0, complaints
    assert list((tmp_path / "blocks").glob("*/meta.json"))


async def test_run_without_sources_has_no_telemetry_files(tmp_path: Path) -> None:
    with server(tokens=3) as mock:
        settings = with_telemetry(config(mock.url, concurrency=2, requests=20), target=False)
        summary = await results_of(settings, tmp_path)
    assert "system" not in summary["aiperf_svc"]
    names = {path.name for path in (tmp_path / "artifacts").iterdir()}
    assert not names & {"metrics.om", "telemetry.parquet", "server_metrics_export.jsonl"}
