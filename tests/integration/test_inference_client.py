"""The hot path: the end of a response, arrival times of its bytes, and invalid responses."""

import asyncio
from time import time_ns

import pytest

from aiperf_svc.adapters.inference import client as inference_client
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Flag, Framing
from tests.support.client_bench import (
    CHUNKED,
    LENGTH,
    MS,
    PADDED,
    WAIT_S,
    bench,
    read_request,
    responses,
)


@pytest.mark.parametrize(
    ("response", "framing"), [(LENGTH, Framing.LENGTH), (CHUNKED, Framing.CHUNKED)]
)
async def test_response_ends_at_its_last_byte(response: bytes, framing: int) -> None:
    async with bench(responses(response)) as b:
        first, second = await b.one(index=1), await b.one(index=2)
        assert [o for o, _ in b.sent.ends] == [Outcome.COMPLETED, Outcome.COMPLETED]
        assert b.sent.bodies == response * 2
        assert first["framing"] == framing
        assert first["body_offset"] == response.index(b"\r\n\r\n") + 4
        assert not first["flags"] & Flag.REUSED
        assert second["flags"] & Flag.REUSED
        assert (first["seq"], second["seq"]) == (1, 2)
        assert len(b.connections) == 1


@pytest.mark.parametrize("response", [LENGTH, CHUNKED, PADDED])
async def test_end_is_found_for_any_split(response: bytes) -> None:
    for at in range(1, len(response)):
        async with bench(responses(response[:at], response[at:])) as b:
            await b.one()
            row = await b.one()
            assert row["outcome"] == Outcome.COMPLETED, at
            assert b.sent.bodies == response * 2
            assert b.sent.read_rows["length"].sum() == 2 * len(response)


async def test_the_end_is_found_byte_by_byte() -> None:
    async with bench(responses(*(bytes([byte]) for byte in CHUNKED))) as b:
        row = await b.one()
        assert row["outcome"] == Outcome.COMPLETED
        assert b.sent.bodies == CHUNKED


async def test_content_like_a_last_chunk_ends_no_body() -> None:
    tricky = CHUNKED.replace(b'd\r\ndata: "one"\n\n\r\n', b"f\r\ndata: 0\r\n\r\n\n\n\n\n\r\n")
    at = tricky.index(b"0\r\n\r\n") + 5
    async with bench(responses(tricky[:at], tricky[at:])) as b:
        await b.one()
        assert b.sent.bodies == tricky


async def test_times_are_ordered_with_kernel_stamps() -> None:
    async with bench(responses(CHUNKED)) as b:
        before = time_ns()
        row = await b.one()
        after = time_ns()
        times = [row[f"{name}_wall_ns"] for name in ("due", "write", "sent", "ack", "end")]
        assert times == sorted(times)
        assert before <= times[0]
        assert times[-1] <= after
        assert not row["flags"] & Flag.UNSTAMPED
        (read,) = b.sent.read_rows
        assert read["polled_wall_ns"] <= read["stamp_wall_ns"] <= read["read_wall_ns"]


async def test_stamp_is_the_arrival_for_a_late_read() -> None:
    async with bench(responses(LENGTH)) as b:
        loop = asyncio.get_running_loop()
        loop.remove_reader(b.client.fd)
        b.send()
        written = b.client.requests_sent
        assert written == 0
        b.client.run_ready()
        while not b.client.requests_sent:
            await asyncio.sleep(0)
            b.client.run_ready()
        # The response arrives while the client does not read. Polling the socket shows its arrival.
        (conn,) = b.connections
        readable = asyncio.Event()
        loop.add_reader(conn.fd, readable.set)
        await asyncio.wait_for(readable.wait(), WAIT_S)
        loop.remove_reader(conn.fd)
        arrived_by = time_ns()
        while time_ns() < arrived_by + 20 * MS:
            pass
        b.client.run_ready()
        b.client.flush()
        (read,) = b.sent.read_rows
        assert read["stamp_wall_ns"] <= arrived_by
        assert read["read_wall_ns"] - read["stamp_wall_ns"] >= 20 * MS


async def test_fragments_of_a_long_response_add_up() -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    head = CHUNKED[: CHUNKED.index(b"\r\n\r\n") + 4]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head)
        for _ in range(20):
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    async with bench(script) as b:
        await b.one()
        rows = b.sent.rows
        assert len(rows) >= 3
        assert rows["part"].tolist() == list(range(len(rows)))
        assert set(rows["request_id"]) == {1}
        finals = (rows["flags"] & Flag.FINAL) != 0
        assert finals.tolist() == [False] * (len(rows) - 1) + [True]
        assert b.sent.bodies == head + chunk * 20 + b"0\r\n\r\n"
        assert rows["body"].sum() == len(b.sent.bodies)
        assert rows["reads"].sum() == len(b.sent.read_rows)


async def test_response_is_kept_only_for_its_request() -> None:
    async with bench(responses(LENGTH)) as b:
        for number, kept in enumerate((LENGTH, None, LENGTH), 1):
            b.client.send(b.request(kept=None if kept is None else bytearray()))
            await b.sent.wait_for(number)
            assert b.sent.ends[-1][1].kept == kept


async def test_an_interim_response_is_passed_over() -> None:
    async with bench(responses(b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH)) as b:
        row = await b.one()
        assert (row["status"], row["outcome"]) == (200, Outcome.COMPLETED)


async def test_a_body_may_end_with_the_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\nhello")

    async with bench(script) as b:
        row = await b.one()
        assert (row["framing"], row["outcome"]) == (Framing.UNTIL_CLOSE, Outcome.COMPLETED)


async def test_error_status_keeps_its_body() -> None:
    response = LENGTH.replace(b"200 OK", b"429 Too Many Requests")
    async with bench(responses(response)) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.STATUS)
        assert row["status"] == 429
        assert b.sent.bodies == response


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (b"", ErrorKind.NO_RESPONSE),
        (LENGTH[:-2], ErrorKind.DISCONNECTED),
        (CHUNKED[:-9], ErrorKind.DISCONNECTED),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ErrorKind.PROTOCOL),
        (CHUNKED.replace(b"d\r\ndata", b"xyz\r\ndata"), ErrorKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, ErrorKind.TOO_LARGE),
    ],
)
async def test_broken_response_is_one_error(response: bytes, kind: ErrorKind) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(response)
        await writer.drain()

    async with bench(script) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, kind)
        assert row["message"] > 0
        assert b.connections == []
        assert b.client.in_flight == 0


async def test_missing_response_has_no_earlier_data() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(LENGTH)
        await read_request(reader)
        asked_again.set()
        await reader.read()

    asked_again = asyncio.Event()
    async with bench(script) as b:
        first = await b.one()
        assert first["status"] == 200
        b.send()
        await asyncio.wait_for(asked_again.wait(), WAIT_S)
        b.client.cancel_in_flight("cut")
        b.client.flush()
        last = b.sent.rows[-1]
        assert last["outcome"] == Outcome.CANCELLED
        assert (last["status"], last["ack_wall_ns"], last["body_offset"]) == (0, 0, 0)


async def test_a_large_request_is_written_whole() -> None:
    received = asyncio.Queue[int]()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        received.put_nowait(len(request))
        writer.write(LENGTH)

    async with bench(script) as b:
        b.send(body=b"x" * 20_000_000)
        await b.sent.wait_for(1)
        b.client.flush()
        (row,) = b.sent.rows
        assert received.get_nowait() == row["bytes_out"] > 20_000_000
        assert row["outcome"] == Outcome.COMPLETED


@pytest.mark.parametrize("response", [LENGTH, CHUNKED.replace(b"Trailer: x\r\n", b"")])
async def test_connection_with_an_unsent_request_is_not_reused(response: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"Content-Length: 2\r\n" in request:
            await reader.readexactly(2)
        writer.write(response)
        await asyncio.Event().wait()

    async with bench(script) as b:
        b.send(body=bytes(20_000_000))
        await b.sent.wait_for(1)
        await b.one()
        assert [outcome for outcome, _ in b.sent.ends] == [Outcome.COMPLETED] * 2
        assert len(b.connections) == 1
        b.client.flush()
        assert not b.sent.rows[-1]["flags"] & Flag.REUSED


async def test_timer_never_fires_early() -> None:
    fired: list[int] = []
    async with bench(responses()) as b:
        done = asyncio.Event()

        def on_timer(now: int) -> None:
            fired.append(now)
            done.set()

        b.client._on_timer = on_timer
        for _ in range(20):
            done.clear()
            at = time_ns() + 3 * MS
            b.client.wake_at(at)
            await asyncio.wait_for(done.wait(), WAIT_S)
            assert fired[-1] >= at
    assert len(fired) == 20


async def test_clock_step_is_counted_and_flags_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    may_response = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            if b"wait" in request:
                await may_response.wait()
            writer.write(LENGTH)

    async with bench(script) as b:
        await b.one()
        b.client.housekeeping()
        await b.one()
        await b.one()
        b.send(body=b"wait")
        monkeypatch.setattr(inference_client, "time_ns", lambda: time_ns() - 30 * MS)
        b.client.housekeeping()
        monkeypatch.undo()
        may_response.set()
        await b.sent.wait_for(4)
        b.client.flush()
        assert [bool(flags & Flag.CLOCK_JUMP) for flags in b.sent.rows["flags"]] == [0, 0, 0, 1]
        assert b.client.ended_near_steps == 2
        assert b.client.clock_steps_ns == pytest.approx(30 * MS, abs=MS)
        b.client.housekeeping()
        assert b.client.clock_steps_ns == pytest.approx(60 * MS, abs=MS)
        assert b.client.ended_near_steps == 3
        b.client.housekeeping()
        assert b.client.clock_steps_ns == pytest.approx(60 * MS, abs=MS)
