"""Connections of requests: selection, life cycle and end."""

import asyncio
import re
import resource
import socket
import ssl
from itertools import count
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

import pytest

from aiperf_svc.adapters.inference import request_writer
from aiperf_svc.adapters.inference.client import CUT_AT_ONCE
from aiperf_svc.adapters.inference.connection import IDLE
from aiperf_svc.adapters.inference.pool import FD_TABLE_SIZE
from aiperf_svc.core.load.target_addresses import SocketAddress
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Flag
from tests.support.client_bench import CHUNKED, LENGTH, MS, WAIT_S, bench, read_request, responses

Certificate = tuple[Path, Path]
NOBODY = [SocketAddress(socket.AF_INET, ("127.0.0.1", 1))]
"""A port without a listener."""
AHEAD_NS = 5 * 10**9
"""Age of a connection attempt that has not timed out."""


async def test_missing_server_is_a_connect_error() -> None:
    async with bench(responses()) as b:
        b.client.addresses.replace(NOBODY)
        row = await b.one()
        assert (row["error"], row["write_wall_ns"]) == (ErrorKind.CONNECT, 0)
        assert b"refused" in b.sent.bodies
        assert b.client.requests_sent == 0


async def test_no_request_waits_for_room_for_its_descriptor() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with bench(responses()):
        assert room_for_descriptors() >= min(limit, FD_TABLE_SIZE)


def room_for_descriptors() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("FDSize:"))


async def test_missing_response_times_out() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()

    async with bench(script, request_timeout="10ms") as b:
        b.send()
        while not b.sent.ends:
            b.client.expire()
            await asyncio.sleep(0.001)
        b.client.flush()
        (row,) = b.sent.rows
        assert row["error"] == ErrorKind.TIMEOUT
        assert row["end_wall_ns"] - row["write_wall_ns"] >= 10 * MS


@pytest.mark.parametrize("size", [5, 400_000], ids=["one read", "several reads"])
async def test_stopped_client_reads_before_timing_out(size: int) -> None:
    written = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, b"x" * size))
        await writer.drain()
        written.set()
        await reader.read()

    async with bench(script, request_timeout="1us") as b:
        asyncio.get_running_loop().remove_reader(b.client.fd)
        b.send()
        while not b.client.requests_sent:
            b.client.run_ready()
            await asyncio.sleep(0)
        await written.wait()
        b.client.expire()
        b.client.flush()
        row = b.sent.rows[-1]
        assert (row["outcome"], row["error"]) == (Outcome.COMPLETED, ErrorKind.NONE)


@pytest.mark.parametrize("unasked", [b"", LENGTH, b"x"], ids=["close", "response", "byte"])
@pytest.mark.parametrize("is_tls", [False, True])
async def test_connection_with_unrequested_bytes_is_not_reused(
    certificate: Certificate, unasked: bytes, is_tls: bool
) -> None:
    """A close, or an unrequested response that would be mistaken for that of the next request."""
    may_come = asyncio.Event()
    numbers = count()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(LENGTH.replace(b"hello", b"%05d" % next(numbers)))
        await may_come.wait()
        writer.write(unasked)
        if unasked:
            await reader.read()

    side = None
    if is_tls:
        side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        side.load_cert_chain(*certificate)
    trust: dict[str, Any] = {"tls": {"ca_file": str(certificate[0])}} if is_tls else {}
    async with bench(script, server_side=side, **trust) as b:
        await b.one(index=1)
        loop = asyncio.get_running_loop()
        # The bytes have arrived unread, so the next request would meet them.
        loop.remove_reader(b.client.fd)
        may_come.set()
        (conn,) = b.connections
        came = asyncio.Event()
        loop.add_reader(conn.fd, came.set)
        await asyncio.wait_for(came.wait(), WAIT_S)
        loop.remove_reader(conn.fd)
        loop.add_reader(b.client.fd, b.client.run_ready)
        due = time_ns()
        b.send(index=2, due=due)
        assert b.client.unasked == (unasked != b"")
        await b.sent.wait_for(2)
        b.client.flush()
        row = b.sent.rows[-1]
        assert row["outcome"] == Outcome.COMPLETED
        assert not row["flags"] & (Flag.REUSED | Flag.RETRIED)
        assert row["due_wall_ns"] == due
        assert (b.client.requests_sent, b.client.retries) == (2, 0)
        assert b.sent.bodies.endswith(b"00001")


async def test_request_crossing_a_close_is_retried() -> None:
    has_closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(LENGTH)
        await (reader.read() if has_closed.is_set() else read_request(reader))
        has_closed.set()

    async with bench(script) as b:
        await b.one(index=1)
        loop = asyncio.get_running_loop()
        loop.remove_reader(b.client.fd)
        (conn,) = b.connections
        due = time_ns()
        b.send(index=2, due=due)
        came = asyncio.Event()
        loop.add_reader(conn.fd, came.set)
        await asyncio.wait_for(came.wait(), WAIT_S)
        loop.remove_reader(conn.fd)
        loop.add_reader(b.client.fd, b.client.run_ready)
        await b.sent.wait_for(2)
        b.client.flush()
        row = b.sent.rows[-1]
        assert row["outcome"] == Outcome.COMPLETED
        assert row["flags"] & Flag.RETRIED
        assert not row["flags"] & Flag.REUSED
        assert row["due_wall_ns"] == due
        (conn,) = b.connections
        assert row["connect_ns"] > conn.made_in_ns, "without the time of the first write"
        assert (b.client.requests_sent, b.client.retries) == (3, 1)


@pytest.mark.parametrize("is_reset", [False, True])
async def test_late_end_of_reused_connection_is_an_error(is_reset: bool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(LENGTH)
        await read_request(reader)
        await asyncio.sleep(0.1)
        if is_reset:
            writer.transport.abort()

    async with bench(script) as b:
        b.client.poll_often(True)
        await b.one(index=1)
        row = await b.one(index=2)
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.NO_RESPONSE)
        assert row["flags"] & Flag.REUSED
        assert not row["flags"] & Flag.RETRIED
        if not is_reset:
            found = re.search(rb"closed by the server (\d+) ms after the request", b.sent.bodies)
            assert found is not None
            assert int(found[1]) >= 100
        assert (b.client.requests_sent, b.client.retries) == (2, 0)


async def test_request_is_retried_at_most_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes when a request arrives. On the reused connection this may be a race; on the
    new connection it cannot be."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await read_request(reader) and not served:
            served.append(True)
            writer.write(LENGTH)
            await read_request(reader)

    served: list[bool] = []
    monkeypatch.setattr(request_writer, "race_window_ns", lambda _sock: 10**12)
    async with bench(script) as b:
        b.client.poll_often(True)
        await b.one(index=1)
        row = await b.one(index=2)
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.NO_RESPONSE)
        assert row["flags"] & Flag.RETRIED
        assert (b.client.requests_sent, b.client.retries) == (3, 1)


async def test_each_request_can_use_a_new_connection() -> None:
    async with bench(responses(LENGTH), connections="per-request") as b:
        first, second = await b.one(), await b.one()
        assert not (first["flags"] | second["flags"]) & Flag.REUSED
        assert second["connect_ns"] > 0
        assert b.connections == []
        assert not b.client.preconnect(2)
        assert b.connections == []


async def test_connection_close_leads_to_a_new_connection() -> None:
    response = LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with bench(responses(response)) as b:
        await b.one()
        assert b.connections == []


async def test_cancel_ends_and_counts_requests_in_flight() -> None:
    written = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        written.set()
        writer.write(CHUNKED[:120])
        await reader.read()

    async with bench(script) as b:
        b.send()
        await asyncio.wait_for(written.wait(), WAIT_S)
        b.client.cancel_in_flight("cut")
        b.client.flush()
        row = b.sent.rows[-1]
        assert (row["outcome"], row["flags"] & Flag.FINAL) == (Outcome.CANCELLED, Flag.FINAL)
        assert b.client.in_flight == 0
        assert b.connections == []


async def test_cancel_of_many_requests_yields_to_the_loop() -> None:
    count = CUT_AT_ONCE + 40
    written = asyncio.Semaphore(0)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        written.release()
        await reader.read()

    async with bench(script) as b:
        b.client.poll_often(True)
        for index in range(count):
            b.send(index=index)
        for _ in range(count):
            await asyncio.wait_for(written.acquire(), WAIT_S)
        b.client.cancel_in_flight("cut")
        assert b.client.in_flight == 40
        await b.sent.wait_for(count)
        assert {outcome for outcome, _ in b.sent.ends} == {Outcome.CANCELLED}
        assert (b.client.in_flight, b.connections) == (0, [])
        assert len(b.sent.timers) == 1


async def test_preconnect_opens_the_requested_connections() -> None:
    async with bench(responses(LENGTH)) as b:
        b.client.preconnect(25)
        assert len(b.connections) == 25
        for index in range(25):
            b.send(index=index)
        await b.sent.wait_for(25)
        assert len(b.connections) == 25


async def test_only_waiting_requests_have_connect_times() -> None:
    async with bench(responses(LENGTH)) as b:
        b.client.preconnect(2)
        async with asyncio.timeout(WAIT_S):
            while {conn.state for conn in b.connections} != {IDLE}:  # noqa: ASYNC110
                await asyncio.sleep(0)  # there is no notification
        b.send(index=1)
        b.send(index=2)
        b.send(index=3)
        await b.sent.wait_for(3)
        b.client.flush()
        waited = {row["index"]: row["connect_ns"] > 0 for row in b.sent.rows}
        assert waited == {1: False, 2: False, 3: True}
        connects = {each.tag: each for each in b.client.network_times()}["network_connect"]
        assert (connects.total, connects.min_ns > 0) == (3, True)


async def test_request_waits_for_a_connecting_connection() -> None:
    async with bench(responses(LENGTH)) as b:
        b.client.preconnect(1)
        (conn,) = b.connections
        conn.opened_mono_ns -= AHEAD_NS
        before = monotonic_ns()
        row = await b.one()
        assert 0 < row["connect_ns"] <= monotonic_ns() - before
        connects = {each.tag: each for each in b.client.network_times()}["network_connect"]
        assert (connects.total, connects.min_ns > 0.9 * AHEAD_NS) == (1, True)


async def test_refusing_target_is_not_preconnected() -> None:
    async with bench(responses(LENGTH)) as b:
        b.client.addresses.replace(NOBODY)
        assert (await b.one())["error"] == ErrorKind.CONNECT
        assert not b.client.preconnect(25)
        assert b.connections == []
        b.client.poll_often(True)
        assert b.client.preconnect(25)
