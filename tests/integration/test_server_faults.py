"""Whole runs against a server that is not what the user expects, or that sends too much. The faults
are counted and explained, and the run ends by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.services import target_lookup
from benchmarks.stream_server import stream_server
from tests.support.client_bench import read_request
from tests.support.endless_server import RESPONSE_BYTES, lowered_bounds
from tests.support.in_one_loop import config, lines, results_of, server, stack

MIB = 2**20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BEGIN = b'data: {"choices":[{"index":0,"delta":{"content":"'
END = b'"}}]}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def one_chunk_server(size: int) -> AsyncIterator[str]:
    """Run a server that answers every request with one event of `size` bytes in one HTTP chunk."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        block = b"x" * MIB
        await read_request(reader)
        writer.write(HEAD + b"%x\r\n" % size + BEGIN)
        left = size - len(BEGIN) - len(END)
        while left > 0:
            writer.write(block[: min(left, MIB)])
            await writer.drain()
            left -= MIB
        writer.write(END + b"\r\n0\r\n\r\n")
        await writer.drain()

    async with stream_server(serve) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_wrong_path_is_404_for_every_request(tmp_path: Path, is_streaming: bool) -> None:
    with server() as mock:
        settings = config(f"{mock.url}/nowhere", concurrency=3, requests=9)
        settings["endpoint"]["streaming"] = is_streaming
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
            await run.wait_for_state("done")
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["errored"], accounts["issued"], accounts["records"]) == (9, 9, 9)
    assert accounts["violations"] == []
    (entry,) = summary["error_summary"]
    assert entry["count"] == 9
    assert entry["error_details"]["code"] == 404
    assert "there is nothing at /nowhere" in entry["error_details"]["message"]


async def test_chunk_of_64_mib_is_read(tmp_path: Path) -> None:
    async with (
        one_chunk_server(64 * MIB) as url,
        stack(config(url, concurrency=1, requests=1), tmp_path) as run,
    ):
        summary = await run.results()
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["completed"], accounts["records"]) == (1, 1)
    assert accounts["violations"] == []
    assert summary["time_to_first_token"]["count"] == 1


async def test_oversized_response_is_cut_and_run_continues(tmp_path: Path) -> None:
    with lowered_bounds():
        async with (
            one_chunk_server(RESPONSE_BYTES + MIB) as url,
            stack(config(url, concurrency=1, requests=2), tmp_path) as run,
        ):
            summary = await run.results()
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["errored"], accounts["records"], accounts["issued"]) == (2, 2, 2)
    assert accounts["violations"] == []
    (entry,) = summary["error_summary"]
    assert entry["count"] == 2
    assert entry["error_details"]["message"] == "an event of over 8 MiB"


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("mock-error-401", 401),
        ("mock-error-429", 429),
        ("mock-error-500", 500),
        ("mock-malformed", 200),
        ("mock-invalid-utf8", 200),
        ("mock-cut", 200),
        ("mock-close", None),
        ("mock-wrong-content-type", 200),
        ("mock-error-in-stream", 200),
        ("mock-empty", 200),
        ("mock-abort", 200),
        ("mock-compressed", 200),
        ("mock-garbage", None),
        ("mock-bad-chunk-size", 200),
        ("mock-hang", None),
    ],
)
async def test_each_fault_is_counted_by_kind(tmp_path: Path, model: str, code: int | None) -> None:
    with server(ttft="1ms", tokens=5) as mock:
        settings = config(mock.url, concurrency=3, requests=9)
        # Only a server that hangs may reach the limit, however busy the machine is.
        limit = "300ms" if model == "mock-hang" else "60s"
        settings["endpoint"] |= {"model": model, "request_timeout": limit}
        summary = await results_of(settings, tmp_path)
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["errored"], accounts["issued"]) == (9, 9)
    assert accounts["violations"] == []
    assert sum(entry["count"] for entry in summary["error_summary"]) == 9
    details = summary["error_summary"][0]["error_details"]
    assert details["message"]
    assert details["code"] == (code if code else details["code"])


async def test_refused_connections_are_counted_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server was up when the worker probed it.
    monkeypatch.setattr(target_lookup, "refuses", lambda _target: False)
    summary = await results_of(config("http://127.0.0.1:1", concurrency=3, requests=9), tmp_path)
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["errored"], accounts["requests_sent"]) == (9, 0)
    assert "refused" in summary["error_summary"][0]["error_details"]["message"].lower()


@pytest.mark.parametrize(
    ("model", "reason", "is_usual"),
    [
        ("mock-padded-chunks", "stop", True),
        ("mock-crlf", "stop", True),
        ("mock-content-filter", "content_filter", False),
        ("mock-ends-at-once", "no_content", False),
    ],
)
async def test_legal_responses_complete_and_unusual_ends_are_named(
    tmp_path: Path, model: str, reason: str, is_usual: bool
) -> None:
    with server(ttft="1ms", tokens=5) as mock:
        settings = config(mock.url, concurrency=3, requests=9)
        settings["endpoint"] |= {"model": model}
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
            assert run.records_manager.status().finish_reasons == {reason: 9}
    ours = summary["aiperf_svc"]
    assert (ours["accounts"]["completed"], ours["accounts"]["violations"]) == (9, [])
    assert ours["finish_reasons"] == {reason: 9}
    assert summary["request_latency"]["count"] == 9
    assert ("time_to_first_token" in summary) == (reason != "no_content")
    assert ("finish_reasons" in {r["check"] for r in ours["reasons"]}) != is_usual
    rows = lines(run.artifacts)
    assert {FinishReason(line["metadata"]["finish_reason"]).name.lower() for line in rows} == {
        reason
    }


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "messages"])
async def test_invalid_utf8_fails_and_huge_text_does_not(
    tmp_path: Path, kind: str, http2: bool
) -> None:
    faults = ["mock-invalid-utf8", "mock-huge-chunk"]
    dataset = {"entries": 2, "input_tokens": {"mean": 20}}
    with server(tokens=5, http2=http2) as mock:
        settings = config(mock.url, dataset=dataset, concurrency=1, requests=4)
        settings["endpoint"] |= {"model": faults[0], "models": faults[1:]}
        settings["endpoint"] |= {"type": kind, "http2": http2}
        summary = await results_of(settings, tmp_path)
    models = {each["model"]: each for each in summary["aiperf_svc"]["models"]}
    assert [models[name]["request_count"]["avg"] for name in faults] == [0, 2]
    assert [models[name]["error_request_count"]["avg"] for name in faults] == [2, 0]
    assert sum(reason["count"] for reason in summary["error_summary"]) == 2
    for reason in summary["error_summary"]:
        assert "utf-8" in reason["error_details"]["message"]
