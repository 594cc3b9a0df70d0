"""Compiled reads of a body leave a connection in the same state as the interpreted client."""

import random
import select
import socket

import pytest

from aiperf_svc.adapters.inference import framing as response_framing
from aiperf_svc.adapters.inference import stamped_reads
from aiperf_svc.adapters.inference.connection import BODY, HEAD
from aiperf_svc.adapters.inference.framing import ResponseFraming
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.stamped_reads import (
    FIRST_READS_BYTES,
    FRAGMENT_BYTES,
    Unhandled,
    interpreted_pass_chunks,
    interpreted_take_ready,
    is_done,
    part_bytes,
)
from aiperf_svc.protocol.records import READ, Flag, Framing
from tests.support.raw_batches import chunk
from tests.support.read_pair import (
    EVENT,
    HEAD_BYTES,
    NO_RECORDS,
    TakeReady,
    body_of,
    compiled,
    connection,
    cut,
    end_of,
    mid_stream,
    needs_compiled,
    received,
    remaining_work,
    request_of,
)


@needs_compiled
@pytest.mark.parametrize("seed", range(60))
def test_body_is_read_like_the_reference(
    pair: tuple[socket.socket, socket.socket], seed: int
) -> None:
    assert compiled is not None
    rng = random.Random(seed)
    pieces = cut(body_of(rng), rng)
    expected = received(interpreted_take_ready, pair, pieces)
    assert received(compiled.take_ready, pair, pieces) == expected
    assert expected.bodies == b"".join(pieces)


@needs_compiled
@pytest.mark.parametrize("seed", range(40))
def test_end_equals_that_of_walking_all_chunks(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket], seed: int
) -> None:
    """Heads and ends arrive in the same read as chunks. The client handles them."""
    rng = random.Random(seed)
    pieces = cut(HEAD_BYTES + body_of(rng), rng)
    ways = []
    for pass_chunks in (stamped_reads.pass_chunks, interpreted_pass_chunks):
        monkeypatch.setattr(response_framing, "pass_chunks", pass_chunks)
        framing, conn, request, head = (
            ResponseFraming(),
            connection(pair[1], HEAD),
            request_of(),
            b"",
        )
        found = []
        for piece in pieces:
            if conn.state == BODY:
                end = end_of(framing.end_of_body, conn, request, piece, 0)
            else:
                head += piece
                end = end_of(framing.take_head, conn, request, head, 1)
            found.append((end, conn.left, conn.line, conn.in_trailers))
            if end is not None:
                break
        ways.append(found)
    assert ways[0] == ways[1]


@needs_compiled
@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.UNTIL_CLOSE])
def test_other_framings_are_left_to_the_client(
    pair: tuple[socket.socket, socket.socket], framing: Framing
) -> None:
    assert compiled is not None
    pieces = [b"some ", b"bytes ", b"of ", b"twenty-six"]
    expected = received(interpreted_take_ready, pair, pieces, framing=framing, left=24)
    assert received(compiled.take_ready, pair, pieces, framing=framing, left=24) == expected
    assert expected.ends == ([10] if framing is Framing.LENGTH else [])


DONE = b"data: [DONE]"
ENDS_IN_DONE = [
    [chunk(EVENT), chunk(DONE + b"\n\n")],
    [chunk(EVENT), chunk(DONE + b"\r\n\r\n")],
    [chunk(EVENT + b"data:[DONE]\r\r")],
    [chunk(EVENT + DONE + b"\n")],
    [chunk(EVENT), b"f\r\n" + DONE + b"\n\n"],
    [chunk(EVENT), b"e\r\n" + DONE + b"\n\n\r"],
    [chunk(EVENT), *(bytes([each]) for each in chunk(DONE + b"\n\n"))],
]
GOES_ON = [
    [chunk(EVENT), chunk(DONE)],
    [chunk(b'data: {"content":"'), chunk(DONE), chunk(b'"}\n\n')],
    [chunk(b'data: {"content":"\\n\\ndata: [DONE]\\n\\n"}\n\n')],
    [chunk(b'data: "[DONE]"\n\n')],
    [chunk(b": data: [DONE]\n\n")],
    [chunk(b"data: [DONE] \n\n")],
    [chunk(b"xdata: [DONE]\n\n")],
    [chunk(b"[DONE]\n\n")],
    [chunk(DONE + b"\n\n: more\n\n")],
    [chunk(b"\n\n")],
    [b"20\r\n", b"\n\n"],
]


@pytest.mark.parametrize("take_ready", [interpreted_take_ready, stamped_reads.take_ready])
@pytest.mark.parametrize(
    ("pieces", "is_at_done"),
    [(each, True) for each in ENDS_IN_DONE] + [(each, False) for each in GOES_ON],
)
def test_only_a_complete_done_line_ends_a_stream(
    pair: tuple[socket.socket, socket.socket],
    take_ready: TakeReady,
    pieces: list[bytes],
    is_at_done: bool,
) -> None:
    server, client = pair
    conn, request = mid_stream(client, flags=int(Flag.STREAMED))
    responses, found = ResponseFraming(), False
    for piece in pieces:
        awaited = request.bytes_in + len(piece)
        server.sendall(piece)
        while request.bytes_in < awaited:
            for what, value in remaining_work(take_ready, conn, 1):
                if what == Unhandled.WAS_READ:
                    assert responses.end_of_body(conn, request, value[0], 0) is None
                    NO_RECORDS.add_read(request, *value[:2], 1, value[2])  # type: ignore[call-arg]
                    found = not conn.line and is_done(request.buffer, max(0, 2 - conn.left))
                else:
                    found = found or what == Unhandled.IS_DONE
    assert found == is_at_done


@needs_compiled
def test_plain_bodies_bypass_the_client(pair: tuple[socket.socket, socket.socket]) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = mid_stream(client, request_id=15)
    batches: list[tuple[bytes, bytes, bytes, int]] = []
    records = RawRecords(lambda *batch: batches.append(batch))
    results = []
    while not request.part:
        server.sendall(chunk(EVENT))
        results.append(remaining_work(compiled.take_ready, conn, 5, {}, records))
    assert len(results) == -(-FRAGMENT_BYTES // len(chunk(EVENT)))
    in_the_middle = FIRST_READS_BYTES // READ.size - 1
    assert [(at, left) for at, left in enumerate(results) if left] == [
        (in_the_middle, [(Unhandled.IN_MIDDLE, None)])
    ]
    assert (request.part, request.buffer, request.read_rows) == (1, None, None)
    records.flush()
    assert batches[0][2] == chunk(EVENT) * len(results)
    assert len(batches[0][1]) == READ.size * len(results)


@needs_compiled
@pytest.mark.parametrize(("number", "part"), [(0, 0), (1, 0), (14, 0), (15, 0), (17, 0), (3, 1)])
def test_simultaneous_streams_ship_parts_at_different_times(
    pair: tuple[socket.socket, socket.socket], number: int, part: int
) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = mid_stream(client, request_id=number, part=part)
    rows = bytearray(FIRST_READS_BYTES)
    expected = FRAGMENT_BYTES if part else FRAGMENT_BYTES * (1 + number % 16) // 16
    assert part_bytes(request) == expected
    for size, has_left in ((expected - 1, False), (expected, True)):
        request.buffer, request.read_rows = bytearray(size - len(chunk(EVENT))), rows
        server.sendall(chunk(EVENT))
        assert remaining_work(compiled.take_ready, conn, 5) == []
        assert request.part == part + has_left


@needs_compiled
def test_kept_bytes_are_left_to_the_client(pair: tuple[socket.socket, socket.socket]) -> None:
    assert compiled is not None
    server, client = pair
    conn, _ = mid_stream(client, buffer=bytearray(), read_rows=bytearray(), kept=bytearray())
    server.sendall(chunk(EVENT))
    [(left, read)] = remaining_work(compiled.take_ready, conn, 5)
    assert left == Unhandled.WAS_READ
    assert read[0] == chunk(EVENT)


TAKE_READY = [
    pytest.param(interpreted_take_ready, id="interpreted"),
    pytest.param(compiled and compiled.take_ready, id="compiled", marks=needs_compiled),
]


@pytest.mark.parametrize("take_ready", TAKE_READY)
def test_only_requested_open_connections_are_read(
    pair: tuple[socket.socket, socket.socket], take_ready: TakeReady
) -> None:
    server, client = pair
    server.sendall(b"bytes")
    conn = connection(client)
    events = [(conn.fd, select.EPOLLIN), (conn.fd, select.EPOLLIN | select.EPOLLHUP)]
    rest = 5, {}, NO_RECORDS  # type: ignore[var-annotated]
    assert take_ready(events, 0, 2, {}, *rest) == [(None, Unhandled.IS_OTHER, conn.fd)] * 2
    assert take_ready(events, 2, 18, {conn.fd: conn}, *rest) == []
    assert take_ready(events, 1, 2, {conn.fd: conn}, *rest) == [
        (conn, Unhandled.HAS_EVENT, events[1][1])
    ]
    [(found, left, read)] = take_ready(events, 0, 1, {conn.fd: conn}, *rest)
    assert (found, left) == (conn, Unhandled.WAS_READ)
    assert read[0] == b"bytes"
    assert take_ready(events, 0, 1, {conn.fd: conn}, *rest) == []


@pytest.mark.parametrize("take_ready", TAKE_READY)
def test_broken_connection_does_not_affect_others(
    pair: tuple[socket.socket, socket.socket], take_ready: TakeReady
) -> None:
    server, client = pair
    other, others_server = socket.socketpair()
    with other, others_server:
        conns = {conn.fd: conn for conn in (connection(client), connection(other))}
        others_server.sendall(b"bytes")
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.close()
        events = [(client.fileno(), select.EPOLLIN), (other.fileno(), select.EPOLLIN)]
        found, left, values = zip(*take_ready(events, 0, 2, conns, 5, {}, NO_RECORDS), strict=True)
        assert found == tuple(conns.values())
        assert left == (Unhandled.FAILED, Unhandled.WAS_READ)
        error, read = values
        assert isinstance(error, ConnectionResetError)
        assert error.strerror
        assert read[0] == b"bytes"
