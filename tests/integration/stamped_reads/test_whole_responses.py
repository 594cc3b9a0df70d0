"""Compiled reads record starts and ends of responses exactly as the client does."""

import socket
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.inference.connection import BODY, HEAD, IDLE, Connection
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import Request, RequestFields
from aiperf_svc.adapters.inference.stamped_reads import Unhandled
from aiperf_svc.core.responses.layouts import Layout, layout_of
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import READ, READ_DTYPE, Framing
from tests.support.raw_batches import chunk
from tests.support.read_pair import (
    EVENT,
    HEAD_BYTES,
    compiled,
    connection,
    fields_of,
    needs_compiled,
    remaining_work,
    request_of,
)

RESPONSE = HEAD_BYTES + chunk(EVENT, b"data: [DONE]\n\n", b"")


def waiting(client: socket.socket, number: int) -> tuple[Connection, Request]:
    """Return a connection whose request was sent, with a distinct number in each field."""
    conn, request = connection(client, HEAD), request_of()
    conn.request = request
    names = ("request_id", "index", "due_wall_ns", "write_wall_ns", "sent_wall_ns", "connect_ns",
             "tls_ns", "bytes_out", "entry", "turn", "flags", "phase",
             "requested_tokens")  # fmt: skip
    for index, name in enumerate(names):
        setattr(request, name, number * 16 + index)
    request.input_tokens = -1
    return conn, request


def layout_of_response() -> Layout:
    layout = layout_of(RESPONSE, status=200, framing=Framing.CHUNKED, body_offset=len(HEAD_BYTES))
    assert layout is not None
    return layout


@needs_compiled
def test_complete_responses_are_recorded_like_the_reference(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert compiled is not None
    server, client = pair
    layout = layout_of_response()
    done: list[tuple[bytes, bytes, bytes, int]] = []
    records = RawRecords(lambda *batch: done.append(batch))
    expected = RawRecords(lambda *batch: done.append(batch))
    for number in range(1, 6):
        response = RESPONSE.replace(b"word", b"wor%d" % number)
        server.sendall(response)
        conn, request = waiting(client, number)
        layouts = {len(RESPONSE): layout}
        assert remaining_work(compiled.take_ready, conn, number, layouts, records) == [
            (Unhandled.HAS_ENDED, request)
        ]
        stamp = request.ack_wall_ns
        assert request.end_wall_ns == stamp
        assert (conn.state, conn.request, conn.is_used) == (IDLE, None, True)
        _, request = waiting(client, number)
        request.status, request.framing = layout.status, layout.framing
        request.body_offset = layout.body_offset
        request.ack_wall_ns = request.end_wall_ns = stamp
        now = int(np.frombuffer(records.reads, dtype=READ_DTYPE)["read_wall_ns"][-1])
        assert stamp <= now
        expected.add_whole(request, response, stamp, number, now)
    records.flush()
    expected.flush()
    assert done[0] == done[1]
    assert done[0][3] == 5


def in_the_middle(client: socket.socket) -> tuple[Connection, Request]:
    """Return a connection with a part of its response sent on and more of it available."""
    conn, request = waiting(client, 3)
    conn.state, conn.left = BODY, 7
    request.framing, request.status = int(Framing.CHUNKED), 200
    request.part, request.body_offset, request.ack_wall_ns = 2, 77, 1_234
    request.buffer, request.read_rows = bytearray(b"5\r\n"), bytearray(READ.size)
    return conn, request


def change(conn: Connection, request: Request, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(request if name in fields_of(RequestFields) else conn, name, value)


LAST = b"hello\r\n" + chunk(EVENT, b"")


@needs_compiled
def test_response_end_is_recorded_like_the_reference(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert compiled is not None
    server, client = pair
    done: list[tuple[bytes, bytes, bytes, int]] = []
    records = RawRecords(lambda *batch: done.append(batch))
    expected = RawRecords(lambda *batch: done.append(batch))
    (conn, request), (_, other) = in_the_middle(client), in_the_middle(client)
    server.sendall(LAST)
    found = remaining_work(compiled.take_ready, conn, 5, {}, records)
    assert found == [(Unhandled.HAS_ENDED, request)]
    assert (conn.state, conn.request, conn.is_used) == (IDLE, None, True)
    assert (request.buffer, request.read_rows) == (None, None)
    row = np.frombuffer(bytes(records.reads), dtype=READ_DTYPE)[-1]
    stamp, now = int(row["stamp_wall_ns"]), int(row["read_wall_ns"])
    assert (request.ack_wall_ns, request.end_wall_ns) == (1_234, stamp)
    expected.add_read(other, LAST, stamp, 5, now)
    other.end_wall_ns = stamp
    expected.end(other, int(Outcome.COMPLETED), 0, b"")
    records.flush()
    expected.flush()
    assert done[0] == done[1]
    assert done[0][3] == 1


@needs_compiled
@pytest.mark.parametrize(
    ("last", "changes"),
    [
        pytest.param(LAST, {"status": 500}, id="an error"),
        pytest.param(LAST, {"keep_alive": False}, id="the connection closes"),
        pytest.param(LAST, {"kept": bytearray()}, id="kept"),
        pytest.param(LAST, {"state": HEAD}, id="the head is not whole"),
        pytest.param(LAST, {"state": IDLE}, id="nobody asked"),
        pytest.param(LAST, {"in_trailers": True}, id="after the last chunk"),
        pytest.param(LAST, {"unsent": memoryview(b"rest")}, id="the request is not out"),
        pytest.param(LAST + b"more", {}, id="more than the response"),
        pytest.param(LAST[:-2] + b"X: y\r\n\r\n", {}, id="a trailer"),
        pytest.param(LAST[:-1], {}, id="all but a byte"),
    ],
)
def test_other_ends_are_left_to_the_client(
    pair: tuple[socket.socket, socket.socket], last: bytes, changes: dict[str, Any]
) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = in_the_middle(client)
    change(conn, request, changes)
    records = RawRecords(lambda *batch: None)
    server.sendall(last)
    [(left, read)] = remaining_work(compiled.take_ready, conn, 5, {}, records)
    assert left == Unhandled.WAS_READ
    assert read[0] == last
    assert (records.last_seq, bytes(request.buffer), conn.left) == (0, b"5\r\n", 7)


@needs_compiled
@pytest.mark.parametrize(
    ("response", "changes"),
    [
        pytest.param(RESPONSE.replace(b"200", b"500"), {}, id="another head"),
        pytest.param(RESPONSE[:-5] + b"1\r\n\r\n", {}, id="another size"),
        pytest.param(RESPONSE + b"more", {}, id="another length"),
        pytest.param(RESPONSE, {"kept": bytearray()}, id="kept"),
        pytest.param(RESPONSE, {"buffer": b"HTTP"}, id="the head came before"),
        pytest.param(RESPONSE, {"state": IDLE}, id="not asked for"),
        pytest.param(RESPONSE, {"tls": object()}, id="enciphered"),
        pytest.param(RESPONSE, {"unsent": memoryview(b"rest")}, id="the request is not out"),
    ],
)
def test_other_beginnings_are_left_to_the_client(
    pair: tuple[socket.socket, socket.socket], response: bytes, changes: dict[str, Any]
) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = waiting(client, 1)
    change(conn, request, changes)
    records = RawRecords(lambda *batch: None)
    server.sendall(response)
    layouts = {len(RESPONSE): layout_of_response()}
    [(left, read)] = remaining_work(compiled.take_ready, conn, 5, layouts, records)
    assert left == Unhandled.WAS_READ
    assert read[0] == response
    assert (records.last_seq, bytes(records.fragments), bytes(records.bodies)) == (0, b"", b"")
