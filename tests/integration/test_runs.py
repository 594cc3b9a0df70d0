"""Whole runs in one event loop against the mock server, compared with the server's own record."""

import asyncio
import json
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from aiohttp import web
from arro3.io import read_parquet

from aiperf_svc.adapters.exports.parquet_export import CLOCKS_KEY
from aiperf_svc.adapters.messaging.bus import decode, encode
from aiperf_svc.adapters.storage.jsonl_file import JsonlFile
from aiperf_svc.core.control import roster
from aiperf_svc.core.records import outbox
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import id_prefix
from aiperf_svc.protocol.messages.records import LineDetails, MetricBatch, SequenceSpan
from aiperf_svc.protocol.records import METRIC_DTYPE
from aiperf_svc.services import base
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.record_processor import RecordProcessor
from tests.support import in_one_loop
from tests.support.fake_results import as_json
from tests.support.in_one_loop import WAIT_S, config, lines, results_of, server, stack
from tests.support.scripted_server import served

SECOND_NS = 10**9


async def test_closed_loop_sends_exact_count_at_exact_concurrency(tmp_path: Path) -> None:
    with server(ttft="10ms", itl="1ms", tokens=5) as mock:
        summary = await results_of(config(mock.url, concurrency=8, requests=200), tmp_path)
        truth = mock.truth(rows=True)
    assert truth["requests"] == 200
    assert truth["max_in_flight"] == 8
    assert summary["request_count"]["avg"] == 200
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == accounts["completed"] == accounts["records"] == 200
    assert accounts["violations"] == []


async def test_every_request_has_one_line_with_server_times(tmp_path: Path) -> None:
    with server(ttft="10ms", itl="2ms", tokens=10) as mock:
        await results_of(config(mock.url, concurrency=4, requests=60), tmp_path)
        rows = {row["request_id"]: row for row in mock.truth(rows=True)["rows"]}
    records = lines(tmp_path / "artifacts")
    assert {r["metadata"]["x_request_id"] for r in records} == set(rows)
    assert len(records) == 60
    errors = []
    for record in records:
        row = rows[record["metadata"]["x_request_id"]]
        true_ms = (row["chunk_wall_ns"][0] - row["arrival_wall_ns"]) / 1e6
        errors.append(record["metrics"]["time_to_first_token"]["value"] - true_ms)
    # Measured from the write to the stamp of the bytes, so never less than the server's value. The
    # difference depends on how long the server waited for a core between its clock and its write.
    assert 0 < min(errors) < 2


async def test_remote_worker_knows_the_clock_within_its_uncertainty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's kernel id makes it look remote; in fact both clocks are the same."""

    def context(**fields: Any) -> RunContext:
        elsewhere: dict[str, Any] = (
            {"boot_id": "other"} if fields["instance"].startswith("worker-0") else {}
        )
        return RunContext(**fields, **elsewhere)

    monkeypatch.setattr(in_one_loop, "RunContext", context)
    with server(ttft="20ms", tokens=2) as mock:
        await results_of(config(mock.url, request_rate=40, duration="3s"), tmp_path, workers=2)
    metadata = read_parquet(tmp_path / "artifacts" / "records.parquet").schema.metadata
    workers = json.loads(metadata[CLOCKS_KEY.encode()])
    other, same = workers["0"]["offsets"], workers["1"]["offsets"]
    assert len(other) >= 2
    assert all(at > 0 and abs(offset) <= uncertainty for at, offset, uncertainty in other)
    assert same == [[0, 0, 0]]
    worst_ms = max(uncertainty for _, _, uncertainty in other) / 1e6
    verdict = json.loads((tmp_path / "artifacts" / "verdict.json").read_text())
    check = next(c for c in verdict["checks"] if c["check"] == "clock_uncertainty")
    stated = re.search(r"to within (\S+) ms", check["text"])
    assert stated is not None
    assert float(stated[1]) >= worst_ms * 0.99


async def test_workers_and_processors_share_a_run_without_overlap(tmp_path: Path) -> None:
    # All users are in flight before the first response, even where services share one core.
    with server(ttft="200ms", tokens=2) as mock:
        settings = config(mock.url, concurrency=120, requests=600)
        async with stack(settings, tmp_path, workers=3, processors=2) as run:
            summary = await run.results()
            assert run.topology.workers == 3
        truth = mock.truth(rows=True)
    assert truth["requests"] == 600
    assert truth["max_in_flight"] == 120
    indexes = sorted(r["metadata"]["session_num"] for r in lines(tmp_path / "artifacts"))
    assert indexes == list(range(600))
    assert summary["aiperf_svc"]["accounts"]["violations"] == []


@pytest.fixture
def quickly_lost(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the silence in seconds after which a member is lost, with all times in proportion."""
    monkeypatch.setattr(base, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(roster, "LISTENED_AT_ONCE_NS", SECOND_NS * 3 // 10)
    monkeypatch.setattr(roster, "SILENCE_NS", SECOND_NS)
    return 1.0


async def test_pause_of_all_services_loses_no_worker(tmp_path: Path, quickly_lost: float) -> None:
    with server(ttft="50ms", tokens=2) as mock:
        settings = config(mock.url, concurrency=20, requests=400)
        async with stack(settings, tmp_path, workers=2, processors=2) as run:
            await run.wait_for_state("profiling")
            # All services share this loop, so this pauses them like a suspended virtual machine.
            time.sleep(2 * quickly_lost)  # noqa: ASYNC251
            summary = await run.results()
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["completed"], accounts["lost"]) == (400, 0)
    checks = {reason["check"] for reason in summary["aiperf_svc"]["reasons"]}
    assert "lost_processes" not in checks


async def test_the_warmup_is_sent_first_and_left_out(tmp_path: Path) -> None:
    with server(ttft="2ms", tokens=2) as mock:
        settings = config(mock.url, concurrency=4, requests=40, warmup={"requests": 12})
        summary = await results_of(settings, tmp_path)
        rows = mock.truth(rows=True)["rows"]
    warmup = [row for row in rows if row["request_id"].startswith(id_prefix("test", Phase.WARMUP))]
    profiling = [
        row for row in rows if row["request_id"].startswith(id_prefix("test", Phase.PROFILING))
    ]
    assert (len(warmup), len(profiling)) == (12, 40)
    last_of_warmup = max(row["end_wall_ns"] for row in warmup)
    assert min(row["arrival_wall_ns"] for row in profiling) > last_of_warmup
    assert summary["request_count"]["avg"] == 40
    assert len(lines(tmp_path / "artifacts")) == 40


async def test_cancelled_run_keeps_its_results(tmp_path: Path) -> None:
    with server(ttft="20ms", tokens=2) as mock:
        async with stack(config(mock.url, concurrency=5, requests=100_000), tmp_path) as run:
            await run.wait_for_state("profiling")
            while (status := run.records_manager.status()).completed < 20:
                await run.records_manager.wait_change(status.number, 1)
            run.records_manager.cancel("interrupted by the test")
            summary = await run.results()
            await run.wait_for_state("cancelled")
    assert summary["was_cancelled"] is True
    assert summary["request_count"]["avg"] >= 20
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    assert accounts["issued"] == accounts["completed"] + accounts["cancelled"]


async def test_failed_run_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_write, write = threading.Event(), threading.Event(), JsonlFile.write

    def write_later(file: JsonlFile) -> None:
        has_begun.set()
        assert may_write.wait(WAIT_S)
        write(file)

    monkeypatch.setattr(JsonlFile, "write", write_later)
    monkeypatch.setattr(roster, "CONTROL_SILENCE_NS", roster.SILENCE_NS)
    with server(ttft="20ms", tokens=2) as mock:
        async with stack(config(mock.url, concurrency=5, requests=100_000), tmp_path) as run:
            manager = run.records_manager
            while (status := manager.status()).completed < 20:
                await manager.wait_change(status.number, 1)
            run.tasks["timing-manager"].cancel()
            await run.wait_for_state("failed")
            assert await asyncio.to_thread(has_begun.wait, WAIT_S)
            late = late_batch()
            manager._handle_batch(decode(late), late)
            may_write.set()
            while not (status := manager.status()).results_ready:
                await manager.wait_change(status.number, 1)
            results = manager.results()
    assert results is not None
    summary = as_json(results)
    ours = summary["aiperf_svc"]
    assert (ours["verdict"], ours["cause"]) == ("invalid", "run-failed")
    run_check = next(reason for reason in ours["reasons"] if reason["check"] == "run")
    assert "timing-manager" in run_check["text"]
    assert "more CPU" not in " ".join(reason["remedy"] for reason in ours["reasons"])
    found = lines(tmp_path / "artifacts")
    assert len(found) == summary["aiperf_svc"]["accounts"]["records"] >= 20
    assert {line["metadata"]["worker_id"] for line in found} == {"worker-0"}


def late_batch() -> bytes:
    """Return a batch from a worker outside the run, which gets no reply about missing records."""
    rows = np.zeros(1, dtype=METRIC_DTYPE)
    rows["phase"] = Phase.PROFILING
    spans = (SequenceSpan("late", 1, 1, 1),)
    details = LineDetails(b"", ())
    return encode(MetricBatch("test", "late", 1, spans=spans, rows=rows.tobytes(), details=details))


async def test_request_content_depends_on_index_and_seed_only(tmp_path: Path) -> None:
    sent = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        with server(tokens=1) as mock:
            settings = config(mock.url, concurrency=100, requests=150)
            await results_of(settings, folder, workers=workers)
        sent.append(
            {
                r["metadata"]["session_num"]: r["metadata"]["conversation_id"]
                for r in lines(folder / "artifacts")
            }
        )
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"endpoint": {"url": "http://nowhere.invalid:1"}}, "no address for 'nowhere.invalid'"),
        ({"tokenizer": {"name": "./input.jsonl"}}, "input.jsonl is not a tokenizer"),
        ({"dataset": {"kind": "single_turn", "file": "input.jsonl"}}, "input.jsonl:2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_bad_input_found_by_service_fails_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    settings = config("http://127.0.0.1:1", concurrency=1, requests=1)
    for key, values in part.items():
        settings[key] = {**settings.get(key, {}), **values} if key == "endpoint" else values
    async with stack(settings, tmp_path) as run:
        await run.wait_for_state("failed")
        status = run.records_manager.status()
    assert message in status.reason
    assert status.exit_code is ExitCode.BAD_CONFIG


async def test_run_waits_for_a_loading_server(tmp_path: Path) -> None:
    is_loaded = asyncio.Event()

    async def respond(request: web.Request) -> web.Response:
        if request.method == "GET" and not is_loaded.is_set():
            return web.json_response({"error": {"message": "loading"}}, status=503)
        message = {"role": "assistant", "content": "a"}
        return web.json_response({"choices": [{"index": 0, "message": message}]})

    async with served("/{path:.*}", respond) as url:
        settings = config(url, concurrency=1, requests=5)
        settings["endpoint"] |= {"wait_for_server": "1h", "streaming": False}
        async with stack(settings, tmp_path) as run, asyncio.timeout(WAIT_S):
            manager = run.records_manager
            while "server" not in (message := manager.status().message):
                await manager.wait_change(manager.status().number, 1)
            is_loaded.set()
            summary = await run.results()
    assert message == "waiting for the server: /health: status 503: loading"
    assert summary["request_count"]["avg"] == 5
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0


async def test_server_that_never_gets_ready_ends_the_run(tmp_path: Path) -> None:
    with server(slow_start="1h") as mock:
        settings = config(mock.url, concurrency=1, requests=5)
        settings["endpoint"] |= {"wait_for_server": "1s"}
        async with stack(settings, tmp_path) as run:
            await run.wait_for_state("failed")
            status = run.records_manager.status()
    assert status.reason.endswith(
        "the server is not ready after 1s (endpoint.wait_for_server): "
        "/health: status 503: the server is starting"
    )
    assert status.exit_code is ExitCode.BENCHMARK_FAILED


async def test_run_ends_before_its_load_where_nothing_listens(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with stack(config(url, concurrency=5, duration="15s"), tmp_path) as run:
            await run.wait_for_state("failed")
            status = run.records_manager.status()
    assert f"nothing listens at {url}: connection refused" in status.reason
    assert "--wait-for-server" in status.reason
    assert status.exit_code is ExitCode.BENCHMARK_FAILED
    assert status.requests_sent == 0


async def test_refusing_url_is_an_error_of_that_target(tmp_path: Path) -> None:
    with socket.socket() as unused, server(tokens=2) as mock:
        unused.bind(("127.0.0.1", 0))
        base = config(mock.url, concurrency=2, requests=20)
        base["endpoint"]["urls"] = [f"http://127.0.0.1:{unused.getsockname()[1]}"]
        summary = await results_of(base, tmp_path)
    assert summary["request_count"]["avg"] == summary["error_request_count"]["avg"] == 10


async def test_response_without_stream_has_only_a_latency(tmp_path: Path) -> None:
    with server(ttft="5ms", tokens=5) as mock:
        settings = config(mock.url, concurrency=2, requests=20)
        settings["endpoint"] |= {"streaming": False}
        summary = await results_of(settings, tmp_path)
    assert summary["request_latency"]["count"] == 20
    assert "time_to_first_token" not in summary


@pytest.mark.parametrize(
    "kind", ["completions", "embeddings", "cohere_rankings", "hf_tei_rankings", "nim_rankings"]
)
async def test_the_other_endpoints_work_the_same_way(tmp_path: Path, kind: str) -> None:
    with server(ttft="5ms", tokens=5) as mock:
        settings = config(mock.url, concurrency=2, requests=20)
        settings["endpoint"] |= {"type": kind, "streaming": kind == "completions"}
        summary = await results_of(settings, tmp_path)
    assert summary["request_count"]["avg"] == 20
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", ["responses", "messages", "huggingface_generate"])
async def test_other_apis_count_the_servers_tokens(
    tmp_path: Path, kind: str, streaming: bool
) -> None:
    with server(ttft="5ms", tokens=7, reasoning_tokens=3, refuse="min_tokens") as mock:
        dataset = {"entries": 5, "input_tokens": {"mean": 6}, "output_tokens": {"mean": 6}}
        settings = config(mock.url, dataset=dataset, concurrency=2, requests=20)
        settings["endpoint"] |= {"type": kind, "streaming": streaming}
        summary = await results_of(settings, tmp_path)
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0
    assert summary["request_count"]["avg"] == 20
    found = lines(tmp_path / "artifacts")
    assert {line["metrics"]["output_sequence_length"]["value"] for line in found} == {6}
    if streaming:
        assert summary["time_to_first_token"]["count"] == 20
        assert summary["inter_token_latency"]["count"] == 20
    else:
        assert "time_to_first_token" not in summary


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", ["template", "raw"])
async def test_described_api_is_measured_like_any_other(
    tmp_path: Path, kind: str, streaming: bool
) -> None:
    body = {"prompt": "a b c", "max_tokens": 4, "stream": streaming}
    (tmp_path / "payloads.jsonl").write_text(json.dumps({"payload": body}))
    text = '{"prompt": {{ text|tojson }}, "max_tokens": 4, "stream": {{ stream|lower }}}'
    api = {"template": text} if kind == "template" else {}
    file = {"kind": "single_turn", "file": str(tmp_path / "payloads.jsonl")}
    dataset = {"entries": 5, "input_tokens": {"mean": 6}} if kind == "template" else file
    with server(ttft="5ms", tokens=7, usage="always") as mock:
        settings = config(mock.url, dataset=dataset, concurrency=2, requests=20)
        settings["endpoint"] |= api | {
            "type": kind,
            "path": "/v1/completions",
            "response_field": "choices[0].text",
            "streaming": streaming,
        }
        summary = await results_of(settings, tmp_path)
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0
    assert summary["request_count"]["avg"] == 20
    found = lines(tmp_path / "artifacts")
    assert {line["metrics"]["output_sequence_length"]["value"] for line in found} == {4}
    assert ("time_to_first_token" in summary) == streaming


@pytest.mark.parametrize("streaming", [True, False])
async def test_sounds_are_uploaded_and_their_texts_counted(tmp_path: Path, streaming: bool) -> None:
    sounds = {"number": 1, "seconds": {"mean": 2.0}, "sample_rates": [16_000]}
    dataset = {"entries": 3, "sounds": sounds}
    with server(ttft="5ms", tokens=7) as mock:
        settings = config(mock.url, dataset=dataset, concurrency=2, requests=10)
        settings["endpoint"] |= {"type": "audio_transcription", "streaming": streaming}
        summary = await results_of(settings, tmp_path)
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0
    assert summary["request_count"]["avg"] == 10
    for line in lines(tmp_path / "artifacts"):
        # A tenth of a second is a token. The 44 bytes of the file's header are less than one.
        assert line["metrics"]["input_sequence_length"]["value"] == 20
        assert line["metrics"]["output_sequence_length"]["value"] == 7
    assert ("time_to_first_token" in summary) == streaming
    inputs = json.loads((tmp_path / "artifacts" / "inputs.json").read_bytes())
    (payload,) = inputs["data"][0]["payloads"]
    assert payload["file"].pop("b64_data").startswith("UklGR")
    fields = {"model": "mock", "file": {"filename": "audio.wav", "content_type": "audio/wav"}}
    assert payload == fields | ({"stream": "true"} if streaming else {})


@pytest.mark.parametrize("streaming", [True, False])
async def test_first_generated_picture_of_a_stream_is_timed(
    tmp_path: Path, streaming: bool
) -> None:
    with server(ttft="5ms", itl="250ms") as mock:
        dataset = {"entries": 3, "input_tokens": {"mean": 6}}
        # Three for each user, because a late server may write a response's pictures all at once.
        settings = config(mock.url, dataset=dataset, concurrency=5, requests=15)
        settings["endpoint"] |= {
            "type": "image_generation",
            "streaming": streaming,
            "extra_inputs": {"partial_images": 2} if streaming else {"n": 2},
        }
        summary = await results_of(settings, tmp_path)
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0
    assert summary["request_count"]["avg"] == 15
    assert summary["input_sequence_length"]["avg"] == 6
    assert "output_sequence_length" not in summary
    if streaming:
        first, whole = summary["time_to_first_token"], summary["request_latency"]
        assert first["count"] == 15
        # The last picture arrives half a second after the first.
        assert first["min"] < whole["min"] / 2
    else:
        assert "time_to_first_token" not in summary


async def test_place_missing_in_responses_is_reported_once(tmp_path: Path) -> None:
    with server(tokens=2) as mock:
        settings = config(mock.url, concurrency=1, requests=3)
        settings["endpoint"] |= {
            "type": "template",
            "template": '{"prompt": {{ text|tojson }}}',
            "path": "/v1/completions",
            "response_field": "answer.text",
            "streaming": False,
        }
        summary = await results_of(settings, tmp_path)
    (found,) = summary["error_summary"]
    assert found["count"] == 3
    assert (
        "no output at 'answer.text' (endpoint.response_field)" in found["error_details"]["message"]
    )


async def results_without_a_processor(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the results and the sent requests of a run that loses one of two record processors."""
    with server(ttft="100ms", tokens=2) as mock:
        # Three times the longest silence, with as many requests on a busy machine.
        settings = config(mock.url, concurrency=100, requests=3_000)
        async with stack(settings, folder, workers=2, processors=2) as run:
            await run.wait_for_state("profiling")
            run.tasks["record-processor-1"].cancel()
            dead = run.services["record-processor-1"]
            dead._raw.close(0)  # type: ignore[attr-defined]
            return await run.results(), mock.truth()["requests"]


@pytest.mark.usefixtures("quickly_lost")
async def test_a_killed_record_processor_costs_no_record(tmp_path: Path) -> None:
    summary, sent = await results_without_a_processor(tmp_path)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["records"] == accounts["requests_sent"] == sent
    assert accounts["violations"] == []
    assert summary["aiperf_svc"]["verdict"] != "valid"
    indexes = [r["metadata"]["session_num"] for r in lines(tmp_path / "artifacts")]
    assert len(indexes) == len(set(indexes))


@pytest.mark.usefixtures("quickly_lost")
async def test_dropped_records_are_lost_and_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "KEPT_BYTES", 0)
    summary, sent = await results_without_a_processor(tmp_path)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["records"] + accounts["records_lost"] == accounts["requests_sent"] == sent
    assert accounts["records_lost"] > 0
    assert accounts["errored"] == 0
    assert accounts["violations"] == []


async def test_long_responses_of_killed_processor_are_accounted_for(
    tmp_path: Path, quickly_lost: float
) -> None:
    with server(ttft="10ms", itl="2ms", tokens=750) as mock:
        # Enough that some are in transit, however late the test checks.
        settings = config(mock.url, concurrency=10, requests=30, grace_period="1s")
        async with stack(settings, tmp_path, workers=1, processors=2) as run:
            await run.wait_for_state("profiling")
            dead = cast(RecordProcessor, run.services["record-processor-0"])
            assembler = dead._assembler
            assert assembler is not None
            await run.wait_until(
                lambda: mock.truth()["requests"] >= 15 and bool(assembler.unfinished)
            )
            run.tasks["record-processor-0"].cancel()
            await asyncio.wait([run.tasks["record-processor-0"]])
            dead._raw.close(0)
            summary = await run.results()
        sent = mock.truth()["requests"]
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["requests_sent"] == sent == 30
    assert accounts["records"] + accounts["records_lost"] == sent
    assert accounts["violations"] == []
    assert summary["aiperf_svc"]["verdict"] != "valid"
