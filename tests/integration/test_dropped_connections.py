"""Whole runs against servers that close reused connections without a response."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.inference import request_writer
from benchmarks.stream_server import stream_server
from tests.support.client_bench import read_request
from tests.support.in_one_loop import config, stack
from tests.support.scripted_server import RESPONSE


@asynccontextmanager
async def dropping_server(after_s: float) -> AsyncIterator[str]:
    """Run a server that closes each connection `after_s` after its second, unanswered request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(RESPONSE)
        await read_request(reader)
        await asyncio.sleep(after_s)

    async with stream_server(serve) as port:
        yield f"http://127.0.0.1:{port}"


async def summary_of(tmp_path: Path, *, after_s: float, requests: int) -> dict[str, Any]:
    async with (
        dropping_server(after_s) as url,
        stack(config(url, concurrency=1, requests=requests), tmp_path) as run,
    ):
        summary: dict[str, Any] = await run.results()
        return summary


async def test_request_dropped_late_is_an_error(tmp_path: Path) -> None:
    summary = await summary_of(tmp_path, after_s=0.1, requests=12)
    ours = summary["aiperf_svc"]
    accounts = ours["accounts"]
    assert (accounts["completed"], accounts["errored"]) == (6, 6)
    assert (accounts["requests_sent"], accounts["records"], accounts["retries"]) == (12, 12, 0)
    assert accounts["violations"] == []
    (entry,) = summary["error_summary"]
    assert entry["error_details"]["type"] == "NoResponse"
    assert "without a response" in entry["error_details"]["message"]


async def test_retries_are_in_accounts_and_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Independent of how late this machine notices the closed connection.
    monkeypatch.setattr(request_writer, "race_window_ns", lambda _sock: 10**12)
    summary = await summary_of(tmp_path, after_s=0, requests=12)
    ours = summary["aiperf_svc"]
    accounts = ours["accounts"]
    assert accounts["violations"] == []
    assert accounts["retries"] > 0
    assert accounts["requests_sent"] == accounts["records"] + accounts["retries"]
    assert summary["retried_request_count"]["avg"] == accounts["retries"]
    (reason,) = [each for each in ours["reasons"] if each["check"] == "retries"]
    assert f"{accounts['retries']} requests were sent again" in reason["text"]
