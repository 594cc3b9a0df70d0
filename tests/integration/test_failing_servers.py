"""Runs against servers that fail most of the load, whose other results must not look good."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.services import target_lookup
from tests.support.fake_results import decoded
from tests.support.in_one_loop import WAIT_S, config, lines, results_of, stack
from tests.support.raw_batches import chunk
from tests.support.scripted_server import Respond, ScriptedServer

TTFT_P99 = {"metric": "time_to_first_token", "stat": "p99", "max": "5s"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
STREAM = HEAD + chunk(TOKEN, TOKEN, FINISH, b"")


@asynccontextmanager
async def serving(respond: Respond) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(respond)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def stream_at_once(_: int, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM)
    await writer.drain()


def ended(summary: dict[str, Any]) -> ExitCode:
    """Return the exit code of a run with these results."""
    outcome = RunOutcome(
        run_id="test", state="done", reason="", results=decoded(summary), artifacts=None
    )
    return outcome.exit_code


def findings(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the failed checks by name."""
    return {reason["check"]: reason for reason in summary["aiperf_svc"]["reasons"]}


def advice(summary: dict[str, Any]) -> str:
    return " ".join(reason["remedy"] for reason in summary["aiperf_svc"]["reasons"])


async def test_two_successes_among_98_refusals_hold_no_objective(tmp_path: Path) -> None:
    async def refuse_most(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM if number < 2 else REFUSAL)
        await writer.drain()

    async with serving(refuse_most) as server:
        settings = config(server.url, request_rate=100, requests=100)
        settings["slo"] = {
            "objectives": [TTFT_P99, {"metric": "request_throughput", "min": 30}],
            "goodput": {"time_to_first_token": "5s"},
        }
        summary = await results_of(settings, tmp_path)
    latency, throughput = summary["aiperf_svc"]["slo"]
    assert (latency["ok"], throughput["ok"]) == (False, False)
    assert "leaves out 98 of 100 requests (98 failed)" in latency["reason"]
    assert "p99 needs 100 values, there are 2" in latency["reason"]
    assert throughput["reason"] == "below the limit"
    # A hundred arrivals at 100 per second take about a second, whenever the two successes occurred.
    assert summary["benchmark_duration"]["avg"] > 0.5
    assert summary["request_throughput"]["avg"] < 4
    assert summary["goodput"]["avg"] < 4
    errors = findings(summary)["errors"]
    assert errors["severity"] == "invalid"
    assert "(98 status)" in errors["text"]
    assert summary["aiperf_svc"]["cause"] == "target-failing"
    assert ended(summary) is ExitCode.VERDICT_INVALID


async def test_timeouts_reduce_the_throughput(tmp_path: Path) -> None:
    stuck = asyncio.Event()

    async def forget_a_third(number: int, writer: asyncio.StreamWriter) -> None:
        if number % 3 == 2:
            await stuck.wait()
        else:
            await stream_at_once(number, writer)

    async with serving(forget_a_third) as server:
        settings = config(server.url, concurrency=30, requests=60)
        # Longer than a busy machine may delay the server's response.
        settings["endpoint"]["request_timeout"] = "7s"
        settings["slo"] = {"objectives": [TTFT_P99, {"metric": "request_throughput", "min": 30}]}
        summary = await results_of(settings, tmp_path)
        stuck.set()
    assert summary["timed_out_request_count"]["avg"] == 20
    latency, throughput = summary["aiperf_svc"]["slo"]
    assert "leaves out 20 of 60 requests (20 timed out)" in latency["reason"]
    # 40 successes in at least the duration of the timeouts.
    assert summary["benchmark_duration"]["avg"] >= 7
    assert summary["request_throughput"]["avg"] <= 40 / 7
    assert throughput["measured"] == summary["request_throughput"]["avg"]
    assert findings(summary)["errors"]["severity"] == "invalid"
    assert summary["aiperf_svc"]["verdict"] == "invalid"
    assert ended(summary) is ExitCode.VERDICT_INVALID


async def test_server_that_dies_in_mid_run_is_named(tmp_path: Path) -> None:
    served, requests, rate = asyncio.Event(), 200, 50
    seconds = (requests - 1) / rate

    async def count_to_25(number: int, writer: asyncio.StreamWriter) -> None:
        if number < 25:
            await stream_at_once(number, writer)
        else:
            # Successes that arrived together with the last one.
            writer.transport.abort()
        if number == 24:
            served.set()

    async with serving(count_to_25) as server:
        settings = config(
            server.url, request_rate=rate, requests=requests, arrival={"pattern": "constant"}
        )
        settings["slo"] = {"objectives": [TTFT_P99, {"metric": "request_throughput", "min": 30}]}
        async with stack(settings, tmp_path) as run:
            async with asyncio.timeout(WAIT_S):
                await served.wait()
            await server.stop()
            summary = await run.results()
    successes = summary["request_count"]["avg"]
    assert 20 <= successes <= 25
    accounts = summary["aiperf_svc"]["accounts"]
    # A request that a busy machine could not write before the end of the load is unsent.
    sent = accounts["issued"] - accounts["unsent"]
    assert summary["error_request_count"]["avg"] == sent - successes
    assert summary["benchmark_duration"]["avg"] >= seconds
    assert summary["request_throughput"]["avg"] == successes / summary["benchmark_duration"]["avg"]
    assert [objective["ok"] for objective in summary["aiperf_svc"]["slo"]] == [False, False]
    # Nothing was sent to a server that was down.
    assert accounts["requests_sent"] < sent
    assert summary["achieved_rate"]["avg"] < (accounts["requests_sent"] + 1) / seconds
    assert summary["aiperf_svc"]["cause"] == "target-failing"
    found = findings(summary)
    assert "connect" in found["errors"]["text"]
    assert "whether it ran during the whole load" in found["errors"]["remedy"]
    # A busy machine sends late, which is a separate finding.
    assert "rate" not in found or "schedule_lag" in found
    assert "more CPU" not in advice(summary)
    assert ended(summary) is ExitCode.VERDICT_INVALID


async def test_absent_target_gives_no_client_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server was up when the worker probed it.
    monkeypatch.setattr(target_lookup, "refuses", lambda _target: False)
    server = ScriptedServer(stream_at_once)
    await server.start()
    await server.stop()
    summary = await results_of(config(server.url, concurrency=5, requests=200), tmp_path)
    assert summary["aiperf_svc"]["cause"] == "target-failing"
    assert "more CPU" not in advice(summary)
    assert ended(summary) is ExitCode.BENCHMARK_FAILED


async def test_few_failures_within_the_budget_are_no_reason(tmp_path: Path) -> None:
    async def refuse_one(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(REFUSAL if number == 50 else STREAM)
        await writer.drain()

    async with serving(refuse_one) as server:
        settings = config(server.url, concurrency=4, requests=110)
        settings["slo"] = {"objectives": [TTFT_P99]}
        summary = await results_of(settings, tmp_path)
    assert [o["ok"] for o in summary["aiperf_svc"]["slo"]] == [True]
    assert [o["reason"] for o in summary["aiperf_svc"]["slo"]] == [""]


async def test_unfinished_handshake_is_blamed_on_the_server(tmp_path: Path) -> None:
    async with serving(stream_at_once) as server:
        # A plain HTTP server waits for the rest of the ClientHello, which it reads as a request.
        settings = config(server.url.replace("http", "https"), request_rate=50, duration="2s")
        # The readiness probe would wait for the same server.
        settings["telemetry"] = {"target": False}
        summary = await results_of(settings, tmp_path)
    found = findings(summary)
    assert summary["unsent_request_count"]["avg"] > 0
    assert "still waited for a connection at the stop" in found["successes"]["text"]
    assert "none was opened" in found["connecting"]["text"]
    for name in ("successes", "connecting"):
        assert "workers" not in found[name]["remedy"]


async def test_stream_in_one_read_is_reported(tmp_path: Path) -> None:
    async with serving(stream_at_once) as server:
        summary = await results_of(config(server.url, concurrency=4, requests=40), tmp_path)
    found = findings(summary)["single_reads"]
    assert found["measured"] == 1.0
    assert "40 of 40 streams" in found["text"]
    assert summary["inter_chunk_latency"]["max"] == 0


async def test_count_reached_before_the_duration_ends_the_window(tmp_path: Path) -> None:
    async def stream_slowly(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TOKEN))
        await asyncio.sleep(0.05)
        writer.write(chunk(TOKEN, FINISH, b""))
        await writer.drain()

    async with serving(stream_slowly) as server:
        settings = config(server.url, concurrency=4, requests=80, duration="1h")
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
    times = [each["metadata"] for each in lines(run.artifacts)]
    length_s = summary["benchmark_duration"]["avg"]
    assert length_s < WAIT_S
    held = sum(each["request_end_ns"] - each["request_start_ns"] for each in times) / 1e9 / length_s
    assert summary["effective_concurrency"]["avg"] == pytest.approx(held, rel=0.01)
    # Over the requested hour, the rate would be a thousandth of this.
    assert held / 8 < summary["concurrency_achievement"]["avg"] <= 1
    # When the last of 80 requests starts, at most 4 are still running.
    steady = summary["steady_state_request_throughput"]["avg"]
    assert steady > 0.8 * summary["request_throughput"]["avg"]
