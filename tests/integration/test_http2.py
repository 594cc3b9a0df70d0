"""The inference client over HTTP/2, with a server based on the h2 library."""

import asyncio
import ssl
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived
from h2.settings import SettingCodes, Settings

from aiperf_svc.adapters.inference.side_requests import ask, call_hook
from aiperf_svc.config.hooks import Hook
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Flag
from tests.support.client_bench import LENGTH, WAIT_S, bench, responses
from tests.support.http2_server import SSE, Peer, http2
from tests.support.raw_batches import chunk
from tests.support.small_configs import small_config

Certificate = tuple[Path, Path]
EVENTS = [b'data: "%d"\n\n' % number for number in range(3)]
STREAM = (
    b"HTTP/1.1 200 \r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunk(*EVENTS, b"")
)
JSON = (b"content-type", b"application/json")


@pytest.fixture
def server_side(server_side: ssl.SSLContext) -> ssl.SSLContext:
    server_side.set_alpn_protocols(["h2", "http/1.1"])
    return server_side


async def stream(peer: Peer) -> None:
    await peer.head(SSE)
    for number, event in enumerate(EVENTS):
        await peer.data(event, end=number == len(EVENTS) - 1)


async def small(peer: Peer) -> None:
    await peer.head(JSON, (b"content-length", b"5"))
    await peer.data(b"hello", end=True)


@pytest.mark.parametrize("is_tls", [False, True])
async def test_responses_are_complete_and_connections_reused(
    server_side: ssl.SSLContext, trust: dict[str, Any], is_tls: bool
) -> None:
    seen: list[dict[bytes, bytes]] = []

    async def respond(peer: Peer) -> None:
        seen.append(dict(peer.headers) | {b"body": peer.body})
        await stream(peer)

    settings: dict[str, Any] = trust if is_tls else {}
    side = server_side if is_tls else None
    headers = {"Connection": "close", "X-Mine": "ü"}
    async with bench(
        http2(respond), server_side=side, http2=True, headers=headers, **settings
    ) as b:
        rows = [await b.one(index=index) for index in range(3)]
        assert [row["outcome"] for row in rows] == [Outcome.COMPLETED] * 3
        assert b.sent.bodies == STREAM * 3
        assert rows[0]["tls_ns"] > 0
        assert rows[1]["flags"] & Flag.REUSED
        assert len(b.connections) == 1
    assert len(seen) == 3
    first = seen[0]
    assert (first[b":method"], first[b":path"]) == (b"POST", b"/v1/chat/completions")
    assert first[b":scheme"] == (b"https" if is_tls else b"http")
    assert first[b":authority"].startswith(b"127.0.0.1:")
    assert (first[b"content-length"], first[b"body"]) == (b"2", b"{}")
    assert first[b"x-mine"] == "ü".encode("latin-1")
    assert not {b"host", b"connection"} & first.keys()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_events_have_the_stamp_of_their_last_read(
    server_side: ssl.SSLContext, trust: dict[str, Any], is_tls: bool
) -> None:
    """The server sends an event when the client has read the previous one. It records both
    times."""
    sent: list[int] = []
    read: list[int] = []

    async def respond(peer: Peer) -> None:
        await peer.head(SSE)
        await peer.ping()
        for number, event in enumerate(EVENTS):
            sent.append(time_ns())
            await peer.data(event, end=number == len(EVENTS) - 1)
            await peer.ping()
            read.append(time_ns())

    settings: dict[str, Any] = trust if is_tls else {}
    side = server_side if is_tls else None
    async with bench(http2(respond), server_side=side, http2=True, **settings) as b:
        row = await b.one()
        assert row["outcome"] == Outcome.COMPLETED
        head, *events = b.sent.read_rows["stamp_wall_ns"].tolist()
        assert len(events) == len(EVENTS)
        assert row["write_wall_ns"] < head == row["ack_wall_ns"] < sent[0]
        for number, stamp in enumerate(events[:-1]):
            assert sent[number] < stamp < read[number]
        assert sent[-1] < events[-1] == row["end_wall_ns"]


@pytest.mark.parametrize("window", [1_000, 65_535, 10_000_000])
async def test_bodies_larger_than_the_servers_window_arrive_whole(window: int) -> None:
    body = bytes(range(256)) * 1_000
    content = b"\xff" * 3_000_000
    bodies: list[bytes] = []

    async def respond(peer: Peer) -> None:
        bodies.append(peer.body)
        await peer.head(JSON)
        await peer.data(content, end=True)

    script = http2(respond, {SettingCodes.INITIAL_WINDOW_SIZE: window})
    async with bench(script, http2=True) as b:
        for index in range(2):
            b.send(index=index, body=body)
            await b.sent.wait_for(index + 1)
        b.client.flush()
        assert bodies == [body, body]
        assert [outcome for outcome, _ in b.sent.ends] == [Outcome.COMPLETED] * 2
        assert b.sent.bodies.count(b"\xff") == 2 * len(content)
        assert b.sent.rows[-1]["flags"] & Flag.REUSED


async def test_request_is_sent_with_its_last_part() -> None:
    last: list[int] = []

    async def respond(peer: Peer) -> None:
        last.append(time_ns())
        await small(peer)

    script = http2(respond, {SettingCodes.INITIAL_WINDOW_SIZE: 1_000})
    async with bench(script, http2=True) as b:
        b.send(body=b"x" * 70_000)
        await b.sent.wait_for(1)
        request = b.sent.ends[0][1]
        assert request.write_wall_ns < request.sent_wall_ns
        assert request.ack_wall_ns > last[0] > request.write_wall_ns


async def test_early_response_does_not_delay_the_sent_time() -> None:
    window = 1_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        h2.local_settings = Settings(
            client=False, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        h2.initiate_connection()
        peer = Peer(h2, reader, writer, stream=1)
        await peer.flush()
        received = 0
        while received < window:
            events = h2.receive_data(await reader.read(65_536))
            received += sum(len(e.data) for e in events if isinstance(e, DataReceived))
            await peer.flush()
        await peer.head(JSON)
        await peer.ping()
        await peer.data(b"hello", end=True)

    async with bench(script, http2=True) as b:
        b.send(body=b"x" * 70_000)
        await b.sent.wait_for(1)
        outcome, request = b.sent.ends[0]
        assert outcome is Outcome.COMPLETED
        assert request.sent_wall_ns < request.ack_wall_ns


async def test_headers_trailers_padding_and_interim_responses_are_understood() -> None:
    async def respond(peer: Peer) -> None:
        peer.h2.send_headers(peer.stream, [(b":status", b"103"), (b"link", b"</x>")])
        # Larger than one frame.
        await peer.head(JSON, (b"x-long", b"z" * 40_000))
        await peer.data(b"hello", pad=100)
        peer.h2.send_headers(peer.stream, [(b"x-sum", b"1")], end_stream=True)
        await peer.flush()

    async with bench(http2(respond), http2=True) as b:
        rows = [await b.one(index=1), await b.one(index=2)]
        assert [row["outcome"] for row in rows] == [Outcome.COMPLETED] * 2
        assert b.sent.bodies.count(b"5\r\nhello\r\n0\r\n\r\n") == 2
        assert rows[1]["flags"] & Flag.REUSED


async def test_empty_error_response_keeps_the_connection() -> None:
    async def respond(peer: Peer) -> None:
        await peer.head(status=b"503", end=True)

    async with bench(http2(respond), http2=True) as b:
        rows = [await b.one(index=1), await b.one(index=2)]
        assert [(row["error"], row["status"]) for row in rows] == [(ErrorKind.STATUS, 503)] * 2
        assert rows[1]["flags"] & Flag.REUSED


@pytest.mark.parametrize("has_begun", [False, True])
async def test_stream_reset_has_a_separate_error(has_begun: bool) -> None:
    async def respond(peer: Peer) -> None:
        if has_begun:
            await peer.head(SSE)
            await peer.data(EVENTS[0])
        code = ErrorCodes.INTERNAL_ERROR if has_begun else ErrorCodes.REFUSED_STREAM
        peer.h2.reset_stream(peer.stream, code)
        await peer.flush()

    async with bench(http2(respond), http2=True) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.STREAM_RESET)
        name = b"INTERNAL_ERROR" if has_begun else b"REFUSED_STREAM"
        assert b"the server reset the stream: " + name in b.sent.bodies
        assert (EVENTS[0] in b.sent.bodies) == has_begun
        assert b.client.retries == 0


async def test_unprocessed_request_is_retried_once() -> None:
    streams: list[int] = []

    async def respond(peer: Peer) -> None:
        streams.append(peer.stream)
        if len(streams) in (2, 4, 5):
            peer.h2.close_connection(last_stream_id=max(peer.stream - 2, 0))
            await peer.flush()
        else:
            await stream(peer)

    async with bench(http2(respond), http2=True) as b:
        rows = [await b.one(index=index) for index in range(3)]
        assert streams == [1, 3, 1, 3, 1]
        outcomes = [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.ERRORED]
        assert [row["outcome"] for row in rows] == outcomes
        assert rows[1]["flags"] & Flag.RETRIED
        assert rows[2]["error"] == ErrorKind.DISCONNECTED
        assert b"the server closes the connection (NO_ERROR) without processing" in b.sent.bodies
        assert b.client.retries == 2


async def test_response_continues_after_a_goaway() -> None:
    streams: list[int] = []

    async def respond(peer: Peer) -> None:
        streams.append(peer.stream)
        await peer.head(SSE)
        await peer.data(EVENTS[0])
        # A GOAWAY without h2's knowledge, because h2 sends nothing after its own GOAWAY.
        peer.writer.write(b"\0\0\x08\x07\0\0\0\0\0" + b"\x7f\xff\xff\xff" + b"\0\0\0\0")
        await peer.data(EVENTS[1])
        await peer.data(EVENTS[2], end=True)

    async with bench(http2(respond), http2=True) as b:
        rows = [await b.one(index=index) for index in range(2)]
        assert [row["outcome"] for row in rows] == [Outcome.COMPLETED] * 2
        assert b.sent.bodies == STREAM * 2
        assert (streams, b.client.retries) == ([1, 1], 0)


async def test_a_goaway_closes_an_idle_connection() -> None:
    left = asyncio.Event()

    async def respond(peer: Peer) -> None:
        await stream(peer)
        await peer.ping()
        peer.h2.close_connection()
        await peer.flush()
        assert await peer.reader.read() == b""
        left.set()

    async with bench(http2(respond), http2=True) as b:
        await b.one()
        await asyncio.wait_for(left.wait(), WAIT_S)
        assert (await b.one())["outcome"] == Outcome.COMPLETED
        assert b.client.retries == 0


async def test_missing_alpn_fails_before_a_request(
    server_side: ssl.SSLContext, trust: dict[str, Any]
) -> None:
    server_side.set_alpn_protocols(["http/1.1"])
    async with bench(responses(LENGTH), server_side=server_side, http2=True, **trust) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.TLS)
        assert b"the server does not offer HTTP/2 (ALPN h2); leave out" in b.sent.bodies
        assert b.client.requests_sent == 0


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"the server speaks HTTP/1.1 here; leave out"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"the server does not speak HTTP/2 here; leave out"),
        (b"", b"closed by the server before its HTTP/2 settings arrived; leave out"),
    ],
)
async def test_server_without_prior_knowledge_is_reported(reply: bytes, text: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()

    async with bench(script, http2=True) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.PROTOCOL)
        assert text in b.sent.bodies
        assert b.client.requests_sent == 0


@pytest.mark.parametrize("is_tls", [False, True])
async def test_requests_beside_the_load_are_in_http2_too(
    server_side: ssl.SSLContext, trust: dict[str, Any], is_tls: bool
) -> None:
    paths: list[tuple[bytes, bytes]] = []

    async def respond(peer: Peer) -> None:
        paths.append((peer.header(b":method"), peer.header(b":path")))
        await small(peer)

    settings: dict[str, Any] = (trust if is_tls else {}) | {"http2": True}
    side = server_side if is_tls else None
    async with bench(http2(respond), server_side=side, **settings) as b:
        before, after = b.target.request(b"x" * 100_000)
        request = before + b"id" + after
        assert await ask(b.target, request, timeout_s=WAIT_S) == (200, b"hello")
        route = b.target.route
        url = f"http{'s' if is_tls else ''}://{route.host}:{route.port}"
        config = small_config(url, endpoint=settings)
        hook = Hook(before="load", path="/reset_prefix_cache")
        assert await call_hook(hook, url, config, "id") == ""
    assert paths == [(b"POST", b"/v1/chat/completions"), (b"POST", b"/reset_prefix_cache")]


async def test_reset_hook_request_is_reported() -> None:
    async def respond(peer: Peer) -> None:
        await peer.head(JSON)
        peer.h2.reset_stream(peer.stream, ErrorCodes.CANCEL)
        await peer.flush()

    async with bench(http2(respond), http2=True) as b:
        url = f"http://127.0.0.1:{b.target.route.port}"
        config = small_config(url, endpoint={"http2": True})
        hook = Hook(before="load", path="/reset_prefix_cache")
        assert await call_hook(hook, url, config, "id") == "the server reset the stream: CANCEL"
