"""Requests and connections of the compiled code equal those of the interpreted code."""

import gc
import socket
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any

import pytest

from aiperf_svc.adapters.inference.connection import (
    CONNECTING,
    HEAD,
    IDLE,
    Connection,
    ConnectionFields,
    PlainConnectionFields,
)
from aiperf_svc.adapters.inference.request import (
    PlainRequestFields,
    PreparedTurn,
    Request,
    RequestFields,
)
from aiperf_svc.adapters.inference.stamped_reads import (
    CONSTANTS,
    Unhandled,
    differences,
    interpreted_begin,
    interpreted_receive,
    interpreted_write_request,
)
from aiperf_svc.protocol.records import Flag
from tests.support.read_pair import (
    compiled,
    connection,
    fields_of,
    mid_stream,
    needs_compiled,
    remaining_work,
    request_of,
)


@needs_compiled
def test_request_is_written_like_the_reference(pair: tuple[socket.socket, socket.socket]) -> None:
    assert compiled is not None
    server, client = pair
    prepared = PreparedTurn(b"GET ", b" end", 4, 5, 6, 7)
    for is_used, tls in ((False, None), (True, None), (True, object())):
        ways = []
        for begin, write in (
            (compiled.begin, compiled.write_request),
            (interpreted_begin, interpreted_write_request),
        ):
            conn = connection(client, IDLE)
            conn.is_used, conn.connect_ns, conn.tls_ns = is_used, 8, 9
            conn.tls = tls  # type: ignore[assignment]
            request = Request(prepared, b"run-", 1, 12, 3, 8, "session")
            before = time_ns(), monotonic_ns()
            unsent = begin(conn, request)
            assert conn.request is request
            if tls is not None:
                assert (unsent, conn.state, request.was_written) == (None, IDLE, False)
                unsent = write(conn)
            assert unsent == 0
            assert server.recv(100) == b"GET run-800000000012 end" == request.payload
            assert before[0] <= request.write_wall_ns <= request.sent_wall_ns <= time_ns()
            assert before[1] <= request.started_mono_ns <= monotonic_ns()
            request.write_wall_ns = request.sent_wall_ns = request.started_mono_ns = 0
            conn.request = None
            ways.append(values_of(conn, ConnectionFields) | values_of(request, RequestFields))
        assert ways[0] == ways[1]
        assert ways[0]["state"] == HEAD
        assert bool(ways[0]["flags"] & Flag.REUSED) is is_used
        assert (ways[0]["connect_ns"] == 0) is is_used


def values_of(of: object, kind: type[Any]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in fields_of(kind)}


@needs_compiled
def test_request_on_a_connecting_connection_waits(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert compiled is not None
    for begin in (compiled.begin, interpreted_begin):
        conn, request = connection(pair[1], CONNECTING), request_of()
        assert begin(conn, request) is None
        assert (conn.request, request.was_written) == (request, False)


@needs_compiled
def test_partial_and_failed_writes_are_reported(pair: tuple[socket.socket, socket.socket]) -> None:
    assert compiled is not None
    server, client = pair
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    for write in (compiled.write_request, interpreted_write_request):
        conn, request = mid_stream(client, payload=bytes(8 * 2**20))
        counts = [len(request.payload) - write(conn)]
        while counts[-1]:
            counts.append(len(request.payload) - write(conn))
        assert 0 < counts[0] < len(request.payload)
        expected = sum(counts)
        while expected:
            expected -= len(server.recv(expected))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()
    for write in (compiled.write_request, interpreted_write_request):
        conn, _ = mid_stream(client, payload=b"more")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            write(conn)


def test_request_begins_with_its_prepared_bytes() -> None:
    session, kept = object(), bytearray()
    prepared = PreparedTurn(b"GET ", b" end", 4, 5, 6, 7)
    request = Request(prepared, b"run-", 1, 12, 3, 8, session, kept)
    fields = {"payload": b"GET run-800000000012 end", "bytes_out": 24, "entry": 4, "turn": 5,
             "input_tokens": 6, "requested_tokens": 7, "phase": 1, "index": 12, "due_wall_ns": 3,
             "flags": 8, "session": session, "kept": kept}  # fmt: skip
    rest = {name: getattr(request, name) for name in fields_of(RequestFields) if name not in fields}
    assert {name: getattr(request, name) for name in fields} == fields
    assert {name: value for name, value in rest.items() if value} == {}
    assert (request.buffer, request.read_rows) == (None, None)


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="nothing"),
        pytest.param(((b"", b"", 1, 2, 3, 4), b"run-", 1, 2, 3), id="one too few"),
        pytest.param(((b"", b"", 1, 2, 3, 4), b"run-", 1, 2, 3, 4, 5, b"", 7), id="one too many"),
        pytest.param(((b"GET ",), b"run-", 1, 2, 3, 4), id="another tuple"),
        pytest.param(([b"", b"", 1, 2, 3, 4], b"run-", 1, 2, 3, 4), id="a list"),
        pytest.param(((b"", b"", 1, 2, 3, 4), "run-", 1, 2, 3, 4), id="a text as id"),
        pytest.param((("GET", b"", 1, 2, 3, 4), b"run-", 1, 2, 3, 4), id="text"),
        pytest.param(((b"", b"", None, 2, 3, 4), b"run-", 1, 2, 3, 4), id="no number"),
        pytest.param(((b"", b"", 1, 2, 3, 4), b"run-", 1, 2, 2**64, 4), id="a number too large"),
    ],
)
def test_request_with_other_arguments_is_rejected(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, IndexError, OverflowError)):
        Request(*arguments)


def test_unreferenced_connection_is_freed_with_its_fields(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    before = len(gc.get_objects())
    for _ in range(1_000):
        conn = connection(pair[1])
        conn.request = request_of(session=[1], kept=bytearray(100), payload=b"payload")
    del conn
    assert len(gc.get_objects()) < before + 100


@needs_compiled
def test_shared_positions_are_equal_on_both_sides() -> None:
    assert compiled is not None
    assert differences(compiled.SHARED) == []
    columns, turn = compiled.SHARED["FRAGMENT"], compiled.SHARED["PreparedTurn"]
    renamed = {("seq_" if name == "seq" else name): place for name, place in columns.items()}
    assert differences({**compiled.SHARED, "FRAGMENT": renamed}) == [
        "FRAGMENT.seq",
        "FRAGMENT.seq_",
    ]
    swapped = {**turn, "before": turn["after"], "after": turn["before"]}
    assert differences({**compiled.SHARED, "PreparedTurn": swapped}) == [
        "PreparedTurn.after",
        "PreparedTurn.before",
    ]
    offset, size, is_signed = columns["status"]
    signed = {**columns, "status": (offset, size, not is_signed)}
    assert differences({**compiled.SHARED, "FRAGMENT": signed}) == ["FRAGMENT.status"]


@needs_compiled
def test_missing_constant_of_the_compiled_steps_is_found() -> None:
    assert compiled is not None
    for name in CONSTANTS:
        with pytest.raises(ImportError, match=f"the constant {name}"):
            compiled.set_constants({key: n for key, n in CONSTANTS.items() if key != name})
    compiled.set_constants(CONSTANTS)


@needs_compiled
@pytest.mark.parametrize(
    ("fields", "plain"),
    [(RequestFields, PlainRequestFields), (ConnectionFields, PlainConnectionFields)],
)
def test_compiled_fields_equal_interpreted_ones(fields: type[Any], plain: type[Any]) -> None:
    assert sorted(fields_of(fields)) == sorted(plain.__slots__)


@needs_compiled
def test_new_compiled_and_plain_requests_are_equal() -> None:
    arguments: Any = PreparedTurn(b"GET ", b" end", 4, 5, 6, 7), b"run-", 1, 12, 3, 8
    for more in ((), ("session",), ("session", bytearray(b"kept"))):
        made = Request(*arguments, *more), PlainRequestFields(*arguments, *more)
        one, other = ({n: getattr(r, n) for n in PlainRequestFields.__slots__} for r in made)
        assert one == other


def compiled_receive(conn: Connection) -> Any:
    """Return a function that only reads."""
    assert compiled is not None
    for left, value in remaining_work(compiled.take_ready, conn, 0):
        if left == Unhandled.FAILED:
            raise value
        return value
    return None


RECEIVES = [
    pytest.param(interpreted_receive, id="interpreted"),
    pytest.param(compiled_receive, id="compiled", marks=needs_compiled),
]


@pytest.mark.parametrize("receive", RECEIVES)
def test_read_has_bytes_stamp_and_time(
    pair: tuple[socket.socket, socket.socket], receive: Callable[[Connection], Any]
) -> None:
    server, client = pair
    conn = connection(client)
    assert receive(conn) is None
    server.sendall(b"some bytes")
    data, stamp, now = receive(conn)
    assert data == b"some bytes"
    assert now - 60_000_000_000 < stamp <= now
    server.shutdown(socket.SHUT_WR)
    assert receive(conn)[:2] == (b"", 0)


@pytest.mark.parametrize("receive", RECEIVES)
def test_a_broken_connection_is_an_os_error(
    pair: tuple[socket.socket, socket.socket], receive: Callable[[Connection], Any]
) -> None:
    server, client = pair
    conn = connection(client)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()
    with pytest.raises(ConnectionResetError):
        receive(conn)
