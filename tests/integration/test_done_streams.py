"""`[DONE]` ends a stream, whatever its framing and its connection do afterwards."""

import asyncio
from collections.abc import Callable

import pytest
from h2.events import StreamReset

from aiperf_svc.adapters.inference import response_reader
from aiperf_svc.adapters.inference.connection import DRAINING, IDLE
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Flag, Rows
from tests.support.client_bench import WAIT_S, Bench, bench, read_request
from tests.support.http2_server import SSE, Peer, http2
from tests.support.raw_batches import chunk

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"[DONE]"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = [TOKEN, TOKEN, TOKEN, DONE]
FRAMINGS = {
    "no last chunk": (b"Transfer-Encoding: chunked\r\n", [chunk(each) for each in EVENTS]),
    "half a chunk": (b"Transfer-Encoding: chunked\r\n", [chunk(TOKEN), b"ff\r\n" + DONE]),
    "too long": (b"Content-Length: 10000\r\n", EVENTS),
    "until close": (b"Connection: close\r\n", EVENTS),
    "nothing": (b"", EVENTS),
}


def never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time to wait for the end of the framing after `[DONE]` to zero."""
    monkeypatch.setattr(response_reader, "FIRST_DONE_WAIT_NS", 0)
    monkeypatch.setattr(response_reader, "DONE_WAIT_NS", 0)


async def until(b: Bench, is_true: Callable[[], bool]) -> None:
    """Wait for an effect of the client's housekeeping."""
    while not is_true():
        b.client.housekeeping()
        await asyncio.sleep(0.001)


async def one(b: Bench, *, index: int) -> Rows:
    """Send a request for a stream and wait for its end."""
    request = b.request(index=index)
    request.flags |= int(Flag.STREAMED)
    b.client.send(request)
    await until(b, lambda: len(b.sent.ends) > index)
    b.client.flush()
    return b.sent.rows[-1]


@pytest.mark.parametrize("is_whole", [True, False], ids=["one write", "several writes"])
@pytest.mark.parametrize("name", FRAMINGS)
async def test_done_ends_a_stream_whose_framing_goes_on(
    monkeypatch: pytest.MonkeyPatch, name: str, is_whole: bool
) -> None:
    never_wait(monkeypatch)
    header, parts = FRAMINGS[name]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for part in [HEAD % header + b"".join(parts)] if is_whole else [HEAD % header, *parts]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with bench(script) as b:
        for index in range(3):
            row = await asyncio.wait_for(one(b, index=index), WAIT_S)
            assert (row["outcome"], row["error"]) == (Outcome.COMPLETED, ErrorKind.NONE)
            assert row["end_wall_ns"] == b.sent.read_rows["stamp_wall_ns"][-1]
            assert not row["flags"] & Flag.REUSED
            b.client.housekeeping()
            assert b.connections == []


async def test_later_streams_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    never_wait(monkeypatch)
    header, parts = FRAMINGS["no last chunk"]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD % header + b"".join(parts))
        await reader.read()

    async with bench(script) as b:
        await asyncio.wait_for(one(b, index=0), WAIT_S)
        request = b.request(index=1)
        request.flags |= int(Flag.STREAMED)
        b.client.send(request)
        await b.sent.wait_for(2)


@pytest.mark.parametrize("waits_ns", [0, 60_000_000_000], ids=["drained", "waited for"])
async def test_connection_is_reused_if_framing_ends_after_done(
    monkeypatch: pytest.MonkeyPatch, waits_ns: int
) -> None:
    """Whether the request waits for the framing's end. After the first such end, all wait."""
    monkeypatch.setattr(response_reader, "FIRST_DONE_WAIT_NS", waits_ns)
    monkeypatch.setattr(response_reader, "DONE_WAIT_NS", 60_000_000_000)
    header, parts = FRAMINGS["no last chunk"]
    may_end = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(HEAD % header + b"".join(parts))
            await writer.drain()
            await may_end.wait()
            writer.write(b"0\r\n\r\n")

    async with bench(script) as b:
        first = asyncio.create_task(one(b, index=0))
        if waits_ns:
            await until(b, lambda: any(c.request and c.request.end_wall_ns for c in b.connections))
            assert not b.sent.ends
        else:
            await asyncio.wait_for(first, WAIT_S)
            assert [conn.state for conn in b.connections] == [DRAINING]
        may_end.set()
        await asyncio.wait_for(first, WAIT_S)
        await until(b, lambda: b.connections[0].state == IDLE)
        rows = [await asyncio.wait_for(one(b, index=index), WAIT_S) for index in (1, 2)]
        assert [bool(row["flags"] & Flag.REUSED) for row in rows] == [True, True]
        assert len(b.connections) == 1


@pytest.mark.parametrize("after", ["close", "reset", "garbage", "time-out"])
async def test_data_after_done_is_no_error(after: str) -> None:
    header, parts = FRAMINGS["no last chunk"]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD % header + b"".join(parts))
        await writer.drain()
        await asyncio.sleep(0.002)
        if after == "reset":
            writer.transport.abort()
        elif after == "garbage":
            writer.write(b"HTTP/1.1 200 OK\r\n")
            await reader.read()
        elif after == "time-out":
            await reader.read()

    async with bench(script, request_timeout="1us" if after == "time-out" else "1m") as b:
        request = b.request()
        request.flags |= int(Flag.STREAMED)
        b.client.send(request)
        while not b.sent.ends:
            if after == "time-out" and request.end_wall_ns:
                b.client.expire()
            await asyncio.sleep(0.001)
        b.client.flush()
        (row,) = b.sent.rows
        assert (row["outcome"], row["error"]) == (Outcome.COMPLETED, ErrorKind.NONE)
        assert b.sent.bodies.endswith(b"[DONE]\n\n\r\n")
        await until(b, lambda: not b.connections)


async def test_http2_stream_is_reset_and_connection_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    never_wait(monkeypatch)
    resets: list[int] = []

    async def respond(peer: Peer) -> None:
        await peer.head(SSE)
        for event in EVENTS:
            await peer.data(event)
        stream = peer.stream
        while stream not in resets:
            events = await peer.next_events()
            resets.extend(e.stream_id for e in events if isinstance(e, StreamReset))

    async with bench(http2(respond), http2=True) as b:
        rows = [await asyncio.wait_for(one(b, index=index), WAIT_S) for index in range(4)]
        assert [row["outcome"] for row in rows] == [Outcome.COMPLETED] * 4
        assert rows[3]["flags"] & Flag.REUSED
        assert len(b.connections) <= 2
    assert resets[0] == 1


@pytest.mark.parametrize("flags", [0, int(Flag.STREAMED)])
async def test_done_in_a_failed_response_is_ignored(flags: int) -> None:
    """Without a requested stream, or with an error status, the framing marks the end."""
    status = b"200 OK" if not flags else b"500 Oops"
    head = b"HTTP/1.1 %b\r\nTransfer-Encoding: chunked\r\n\r\n" % status

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head + chunk(DONE))
        await writer.drain()
        await asyncio.sleep(0.002)
        writer.write(b"5\r\nhello\r\n0\r\n\r\n")

    async with bench(script) as b:
        request = b.request()
        request.flags |= flags
        b.client.send(request)
        await b.sent.wait_for(1)
        b.client.flush()
        assert b"hello" in b.sent.bodies
