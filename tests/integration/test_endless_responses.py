"""Servers with endless responses. No memory grows meanwhile, and the run reports them."""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.inference.framing import MAX_HEAD_BYTES
from aiperf_svc.adapters.inference.stamped_reads import MAX_RESPONSE_BYTES
from aiperf_svc.core.responses.sse import MAX_EVENT_BYTES
from aiperf_svc.services.record_processor import RecordProcessor
from aiperf_svc.services.worker import Worker
from tests.support.endless_server import MIB, RESPONSE_BYTES, endless_server, lowered_bounds
from tests.support.in_one_loop import Stack, config, results_of, server, stack

PAGE = Path(__file__).parents[2] / "docs/decisions/0026-every-queue-is-bounded.md"
FULL_BYTES = 4 * MIB
"""Less than what a worker keeps: its record processor reads everything before the run ends."""
QUEUE_BYTES = 16 * MIB
"""At most 16 batches between two sockets."""
SOCKET_BYTES = QUEUE_BYTES + 2 * sum(
    int(Path(f"/proc/sys/net/ipv4/tcp_{name}").read_text().split()[2]) for name in ("rmem", "wmem")
)
"""Plus the kernel buffers of two connections."""


def rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def worker_of(run: Stack) -> Worker:
    found = run.services["worker-0"]
    assert isinstance(found, Worker)
    return found


async def wait_while_growing(count: Callable[[], int], *, look_every_s: float) -> None:
    """Wait until two consecutive reads of a count are equal."""
    last = -1
    async with asyncio.timeout(60):
        while last != (newest := count()):
            last = newest
            await asyncio.sleep(look_every_s)


@pytest.fixture
def may_read(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event. Record processors read nothing until it is set."""
    event = asyncio.Event()
    process = RecordProcessor._process

    async def waiting(self: RecordProcessor, *args: Any) -> None:
        await event.wait()
        await process(self, *args)

    monkeypatch.setattr(RecordProcessor, "_process", waiting)
    return event


async def test_endless_streams_are_read_while_records_have_room(
    tmp_path: Path, may_read: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiperf_svc.core.records.outbox.FULL_BYTES", FULL_BYTES)
    monkeypatch.setattr("aiperf_svc.core.records.outbox.ROOM_BYTES", FULL_BYTES // 2)
    monkeypatch.setattr("aiperf_svc.adapters.messaging.bus.RAW_HIGH_WATER", 8)
    before = rss_bytes()
    with endless_server("events") as endless:
        settings = config(endless.url, concurrency=2, duration="10m", grace_period="0s")
        async with stack(settings, tmp_path) as run:
            worker = worker_of(run)
            await run.wait_until(lambda: worker._records.is_holding_back)
            await wait_while_growing(lambda: endless.sent_bytes, look_every_s=1)
            assert worker._records.waiting_bytes < FULL_BYTES + 2 * MIB
            assert endless.sent_bytes < FULL_BYTES + SOCKET_BYTES
            assert rss_bytes() - before < 4 * (FULL_BYTES + QUEUE_BYTES)
            may_read.set()
            await run.wait_until(lambda: not worker._records.is_holding_back)
            run.records_manager.cancel("enough")
            summary = await run.results()
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    assert accounts["cancelled"] == accounts["records"] == 2
    assert summary["aiperf_svc"]["verdict"] == "invalid"
    (reason,) = (r for r in summary["aiperf_svc"]["reasons"] if r["check"] == "held_back")
    assert "too many records waited for its record processor" in reason["text"]


async def test_held_back_requests_are_late_and_not_lost(
    tmp_path: Path, may_read: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiperf_svc.core.records.outbox.FULL_BYTES", 20_000)
    monkeypatch.setattr("aiperf_svc.core.records.outbox.ROOM_BYTES", 10_000)
    monkeypatch.setattr("aiperf_svc.adapters.messaging.bus.RAW_HIGH_WATER", 1)
    with server(ttft="1ms", tokens=20) as mock:
        # A few responses fill the outbox long before the last request is due.
        settings = config(mock.url, request_rate=100, requests=300, arrival={"pattern": "constant"})
        async with stack(settings, tmp_path) as run:
            worker = worker_of(run)
            await run.wait_until(lambda: worker._records.is_holding_back)
            # 50 of them become due in that time.
            await wait_while_growing(lambda: mock.truth()["requests"], look_every_s=0.5)
            assert worker._records.is_holding_back
            may_read.set()
            summary = await run.results()
            await run.wait_for_state("done")
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    assert accounts["completed"] == accounts["records"] == 300
    (reason,) = (r for r in summary["aiperf_svc"]["reasons"] if r["check"] == "held_back")
    assert reason["measured"] > 0.05
    assert summary["schedule_lag"]["max"] > 200


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("headers", "headers of over 64 KiB: cut off"),
        ("interim heads", "headers of over 64 KiB: cut off"),
        ("line", "an event of over 8 MiB"),
        ("chunk", "an event of over 8 MiB"),
        ("comments", "over 24 MiB: cut off"),
        ("trailers", "over 24 MiB: cut off"),
    ],
)
async def test_endless_response_is_cut_off_with_a_reason(
    tmp_path: Path, kind: str, message: str
) -> None:
    before = rss_bytes()
    with lowered_bounds(), endless_server(kind) as endless:
        settings = config(endless.url, concurrency=1, requests=1)
        # The endpoint probe would read from the same server.
        settings["telemetry"] = {"target": False}
        summary = await results_of(settings, tmp_path)
    (entry,) = summary["error_summary"]
    assert entry["error_details"]["type"] == "TooLarge"
    assert message in entry["error_details"]["message"]
    assert summary["aiperf_svc"]["accounts"]["violations"] == []
    assert endless.sent_bytes < RESPONSE_BYTES + SOCKET_BYTES
    assert rss_bytes() - before < 2 * RESPONSE_BYTES


def test_documented_bounds_equal_those_of_a_response() -> None:
    page = " ".join(PAGE.read_text().split())
    stated = f"{MAX_RESPONSE_BYTES // MIB} MiB; {MAX_HEAD_BYTES // 2**10} KiB of headers; "
    assert f"*One response*: {stated}{MAX_EVENT_BYTES // MIB} MiB for an event or JSON body" in page


async def test_record_is_awaited_while_its_processor_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiperf_svc.services.records_manager.MISSING_S", 1.2)
    # Heartbeats report how much was read.
    monkeypatch.setattr("aiperf_svc.services.base.HEARTBEAT_S", 0.1)
    process, batches = RecordProcessor._process, count()

    async def slow(self: RecordProcessor, *args: Any) -> None:
        await asyncio.sleep(0.2)
        if next(batches) == 3:
            # All services share this loop, so none is considered silent while the loop is blocked.
            time.sleep(1.5)  # noqa: ASYNC251
        await asyncio.sleep(0.2)
        await process(self, *args)

    monkeypatch.setattr(RecordProcessor, "_process", slow)
    with server(ttft="1ms", itl="5ms", tokens=120) as mock:
        summary = await results_of(config(mock.url, concurrency=1, requests=1), tmp_path)
    assert next(batches) > 4
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["records"], accounts["records_lost"]) == (1, 0)
