"""The compiled reads leave a connection as the interpreted ones and the client do, to the byte."""

import gc
import itertools
import random
import select
import socket
from collections.abc import Callable, Iterator
from time import monotonic_ns, time_ns
from typing import Any, NamedTuple

import numpy as np
import pytest

from aiperf_svc.adapters.inference import framing as response_framing
from aiperf_svc.adapters.inference import stamped_reads
from aiperf_svc.adapters.inference.connection import (
    BODY,
    CONNECTING,
    HEAD,
    IDLE,
    Connection,
    ConnectionFields,
    PlainConnectionFields,
)
from aiperf_svc.adapters.inference.framing import ResponseFraming
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import (
    PlainRequestFields,
    PreparedTurn,
    Request,
    RequestFields,
)
from aiperf_svc.adapters.inference.stamped_reads import (
    CONSTANTS,
    FIRST_READS_BYTES,
    FRAGMENT_BYTES,
    Unhandled,
    differences,
    interpreted_begin,
    interpreted_pass_chunks,
    interpreted_receive,
    interpreted_take_ready,
    interpreted_write_request,
    part_bytes,
)
from aiperf_svc.core.load.target_addresses import TargetAddress
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.core.responses.layouts import Layout, layout_of
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import READ, READ_DTYPE, Flag, Framing

SO_TIMESTAMPNS = 35
EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
compiled = stamped_reads.compiled
needs_compiled = pytest.mark.skipif(compiled is None, reason="the reads are not compiled: `make`")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the server's, and the client's, which is stamped."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server, _ = listener.accept()
        with server:
            client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await_stamps(server, client)
            client.setblocking(False)
            yield server, client


def await_stamps(server: socket.socket, client: socket.socket) -> None:
    """The kernel begins to stamp a moment after the first socket that asks for it was made."""
    for _ in range(100_000):
        server.sendall(b"?")
        if client.recvmsg(1, 64)[1]:
            return
    raise AssertionError("the kernel does not stamp")


def fields_of(kind: type[Any]) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("__")]


def connection(sock: socket.socket, state: int = BODY) -> Connection:
    """One that was never connected by a pool."""
    nowhere: TargetAddress = None  # type: ignore[assignment]
    watched: select.epoll = None  # type: ignore[assignment]
    conn = Connection(sock, nowhere, watched, opened_mono_ns=0)
    conn.state = state
    return conn


def request_of(**fields: Any) -> Request:
    """A request with these fields, the others as it begins."""
    request = Request(PreparedTurn(b"GET ", b" end", 4, 5, 6, 7), b"run-", 1, 12, 3, 8)
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def in_a_body(sock: socket.socket, **fields: Any) -> tuple[Connection, Request]:
    """A connection whose chunked response goes on, and its request."""
    conn, request = connection(sock), request_of(framing=int(Framing.CHUNKED), **fields)
    conn.request = request
    return conn, request


class Received(NamedTuple):
    fragments: bytes
    bodies: bytes
    reads: list[tuple[int, int]]
    """Poll and length of each."""
    ends: list[int | str]
    """What the client found where it looked itself, but for bodies that go on."""
    rest: tuple[int, bytes, bool, int]


TakeReady = Callable[..., Any]
NO_RECORDS = RawRecords(lambda *batch: None)


def taken(
    take_ready: TakeReady,
    conn: Connection,
    polled: int,
    layouts: dict[int, Layout] | None = None,
    records: RawRecords = NO_RECORDS,
) -> list[tuple[int, Any]]:
    """What is left to do for one connection when there is something to read."""
    events, conns = [(conn.fd, select.EPOLLIN)], {conn.fd: conn}
    rest = take_ready(events, 0, 1, conns, polled, layouts or {}, records)
    assert [found for found, *_ in rest] == [conn] * len(rest)
    return [(left, value) for _, left, value in rest]


def received(
    take_ready: TakeReady,
    pair: tuple[socket.socket, socket.socket],
    pieces: list[bytes],
    *,
    framing: Framing = Framing.CHUNKED,
    left: int = 0,
) -> Received:
    """What there is of a body that comes in these pieces."""
    server, client = pair
    conn, request = in_a_body(client)
    request.framing, conn.left = int(framing), left
    conn.keep_alive = False  # so that its end is the client's
    batches: list[tuple[bytes, bytes, bytes]] = []
    records = RawRecords(lambda *batch: batches.append(batch[:3]))
    responses, ends = ResponseFraming(), []
    for number, piece in enumerate(pieces):
        awaited = request.bytes_in + len(piece)
        server.sendall(piece)
        while request.bytes_in < awaited:
            for what, value in taken(take_ready, conn, number, {}, records):
                if what == Unhandled.IN_MIDDLE:
                    continue
                assert what == Unhandled.WAS_READ
                data, stamp, now = value
                ends.append(end_of(responses.end_of_body, conn, request, data, 0))
                records.add_read(request, data, stamp, number, now)
                if len(request.buffer) >= part_bytes(request):
                    records.take_part(request)
    records.take_part(request)
    records.flush()
    rows = np.frombuffer(b"".join(reads for _, reads, _ in batches), dtype=READ_DTYPE)
    assert (rows["stamp_wall_ns"] > 0).all()
    assert (np.diff(rows["stamp_wall_ns"]) >= 0).all()
    assert (rows["read_wall_ns"] >= rows["stamp_wall_ns"]).all()
    return Received(
        b"".join(fragments for fragments, _, _ in batches),
        b"".join(bodies for _, _, bodies in batches),
        list(zip(rows["polled_wall_ns"].tolist(), rows["length"].tolist(), strict=True)),
        [end for end in ends if end is not None],
        (conn.left, conn.line, conn.in_trailers, request.bytes_in),
    )


def end_of(look: Callable[..., int | None], *arguments: Any) -> int | str | None:
    """What a look for the end finds, or that it is broken."""
    try:
        return look(*arguments)
    except ProtocolViolation:
        return "broken"


def chunked(*contents: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(content), content) for content in contents)


def cut(body: bytes, rng: random.Random) -> list[bytes]:
    """The body in pieces, most of which end where a chunk does."""
    ends = {at + 2 for at in range(len(body)) if body[at : at + 2] == b"\r\n"}
    places = sorted(end for end in ends if rng.random() < 0.7)
    places += rng.sample(range(1, len(body)), k=min(5, len(body) - 1))
    edges = sorted({0, *places, len(body)})
    return [body[begin:end] for begin, end in itertools.pairwise(edges)]


def body_of(rng: random.Random) -> bytes:
    contents = [EVENT * rng.randint(1, 3) + bytes(rng.randbytes(rng.randint(0, 300)))
                for _ in range(rng.randint(2, 60))]  # fmt: skip
    forms = (b"%x", b"%08x", b"%X", b"%0300x", b"%x;a=b", b'%x ; a="b;c"')
    body = b"".join(
        (b"%x" if rng.random() < 0.8 else rng.choice(forms)) % len(content)
        + b"\r\n%b\r\n" % content
        for content in contents
    )
    strange = rng.choice(
        (b"", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"5;a=b\r\nhello\r\n", b"00A\r\n0123456789\r\n",
         b"0000\r\n\r\n", b"0;a\r\nX: y\r\nZ: 1\r\n\r\n",
         b"\r\n", b"z\r\n", b"fffffffff\r\n", b"3\nabc\r\n", b"-1\r\n", b"0x3\r\nabc\r\n")
    )  # fmt: skip
    return body + strange


@needs_compiled
@pytest.mark.parametrize("seed", range(60))
def test_a_body_is_taken_as_the_reference_takes_it(
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
def test_an_end_is_found_where_walking_all_chunks_finds_it(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket], seed: int
) -> None:
    """Heads and ends come with chunks in the same read, which are the client's to pass over."""
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
def test_other_framings_are_the_client_s(
    pair: tuple[socket.socket, socket.socket], framing: Framing
) -> None:
    assert compiled is not None
    pieces = [b"some ", b"bytes ", b"of ", b"twenty-six"]
    expected = received(interpreted_take_ready, pair, pieces, framing=framing, left=24)
    assert received(compiled.take_ready, pair, pieces, framing=framing, left=24) == expected
    assert expected.ends == ([10] if framing is Framing.LENGTH else [])


@needs_compiled
def test_what_is_plain_never_reaches_the_client(pair: tuple[socket.socket, socket.socket]) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = in_a_body(client, request_id=15)
    batches: list[tuple[bytes, bytes, bytes, int]] = []
    records = RawRecords(lambda *batch: batches.append(batch))
    said = []
    while not request.part:
        server.sendall(chunked(EVENT))
        said.append(taken(compiled.take_ready, conn, 5, {}, records))
    assert len(said) == -(-FRAGMENT_BYTES // len(chunked(EVENT)))
    in_the_middle = FIRST_READS_BYTES // READ.size - 1
    assert [(at, left) for at, left in enumerate(said) if left] == [
        (in_the_middle, [(Unhandled.IN_MIDDLE, None)])
    ]
    assert (request.part, request.buffer, request.read_rows) == (1, None, None)
    records.flush()
    assert batches[0][2] == chunked(EVENT) * len(said)
    assert len(batches[0][1]) == READ.size * len(said)


@needs_compiled
@pytest.mark.parametrize(("number", "part"), [(0, 0), (1, 0), (14, 0), (15, 0), (17, 0), (3, 1)])
def test_streams_that_begin_together_send_on_their_parts_one_after_the_other(
    pair: tuple[socket.socket, socket.socket], number: int, part: int
) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = in_a_body(client, request_id=number, part=part)
    rows = bytearray(FIRST_READS_BYTES)
    expected = FRAGMENT_BYTES if part else FRAGMENT_BYTES * (1 + number % 16) // 16
    assert part_bytes(request) == expected
    for size, has_left in ((expected - 1, False), (expected, True)):
        request.buffer, request.read_rows = bytearray(size - len(chunked(EVENT))), rows
        server.sendall(chunked(EVENT))
        assert taken(compiled.take_ready, conn, 5) == []
        assert request.part == part + has_left


@needs_compiled
def test_bytes_that_somebody_keeps_are_the_client_s(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert compiled is not None
    server, client = pair
    conn, _ = in_a_body(client, buffer=bytearray(), read_rows=bytearray(), kept=bytearray())
    server.sendall(chunked(EVENT))
    [(left, read)] = taken(compiled.take_ready, conn, 5)
    assert left == Unhandled.WAS_READ
    assert read[0] == chunked(EVENT)


TAKE_READY = [
    pytest.param(interpreted_take_ready, id="interpreted"),
    pytest.param(compiled and compiled.take_ready, id="compiled", marks=needs_compiled),
]


@pytest.mark.parametrize("take_ready", TAKE_READY)
def test_only_what_is_asked_for_and_still_known_is_read(
    pair: tuple[socket.socket, socket.socket], take_ready: TakeReady
) -> None:
    server, client = pair
    server.sendall(b"bytes")
    conn = connection(client)
    events = [(conn.fd, select.EPOLLIN), (conn.fd, select.EPOLLIN | select.EPOLLHUP)]
    rest = 5, {}, NO_RECORDS
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
def test_a_connection_that_breaks_takes_nothing_from_the_others(
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


HEAD_BYTES = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RESPONSE = HEAD_BYTES + chunked(EVENT, b"data: [DONE]\n\n", b"")


def waiting(client: socket.socket, number: int) -> tuple[Connection, Request]:
    """A connection whose request has been sent, with a number of its own in each field."""
    conn, request = connection(client, HEAD), request_of()
    conn.request = request
    names = ("request_id", "index", "due_wall_ns", "start_wall_ns", "sent_wall_ns", "connect_ns",
             "tls_ns", "bytes_out", "entry", "turn", "flags", "phase",
             "requested_tokens")  # fmt: skip
    for place, name in enumerate(names):
        setattr(request, name, number * 16 + place)
    request.input_tokens = -1
    return conn, request


def layout_of_response() -> Layout:
    layout = layout_of(RESPONSE, status=200, framing=Framing.CHUNKED, body_offset=len(HEAD_BYTES))
    assert layout is not None
    return layout


@needs_compiled
def test_whole_responses_are_recorded_as_the_reference_records_them(
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
        assert taken(compiled.take_ready, conn, number, layouts, records) == [
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
    """A connection with a part of its response sent on, and more of it here."""
    conn, request = waiting(client, 3)
    conn.state, conn.left = BODY, 7
    request.framing, request.status = int(Framing.CHUNKED), 200
    request.part, request.body_offset, request.ack_wall_ns = 2, 77, 1_234
    request.buffer, request.read_rows = bytearray(b"5\r\n"), bytearray(READ.size)
    return conn, request


def change(conn: Connection, request: Request, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(request if name in fields_of(RequestFields) else conn, name, value)


LAST = b"hello\r\n" + chunked(EVENT, b"")


@needs_compiled
def test_the_end_of_a_response_is_recorded_as_the_reference_records_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert compiled is not None
    server, client = pair
    done: list[tuple[bytes, bytes, bytes, int]] = []
    records = RawRecords(lambda *batch: done.append(batch))
    expected = RawRecords(lambda *batch: done.append(batch))
    (conn, request), (_, other) = in_the_middle(client), in_the_middle(client)
    server.sendall(LAST)
    assert taken(compiled.take_ready, conn, 5, {}, records) == [(Unhandled.HAS_ENDED, request)]
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
def test_any_other_end_is_the_client_s(
    pair: tuple[socket.socket, socket.socket], last: bytes, changes: dict[str, Any]
) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = in_the_middle(client)
    change(conn, request, changes)
    records = RawRecords(lambda *batch: None)
    server.sendall(last)
    [(left, read)] = taken(compiled.take_ready, conn, 5, {}, records)
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
def test_any_other_beginning_is_the_client_s(
    pair: tuple[socket.socket, socket.socket], response: bytes, changes: dict[str, Any]
) -> None:
    assert compiled is not None
    server, client = pair
    conn, request = waiting(client, 1)
    change(conn, request, changes)
    records = RawRecords(lambda *batch: None)
    server.sendall(response)
    layouts = {len(RESPONSE): layout_of_response()}
    [(left, read)] = taken(compiled.take_ready, conn, 5, layouts, records)
    assert left == Unhandled.WAS_READ
    assert read[0] == response
    assert (records.last_seq, bytes(records.fragments), bytes(records.bodies)) == (0, b"", b"")


@needs_compiled
def test_a_request_is_begun_and_written_as_the_reference_does_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
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
            assert before[0] <= request.start_wall_ns <= request.sent_wall_ns <= time_ns()
            assert before[1] <= request.started_mono_ns <= monotonic_ns()
            request.start_wall_ns = request.sent_wall_ns = request.started_mono_ns = 0
            conn.request = None
            ways.append(values_of(conn, ConnectionFields) | values_of(request, RequestFields))
        assert ways[0] == ways[1]
        assert ways[0]["state"] == HEAD
        assert bool(ways[0]["flags"] & Flag.REUSED) is is_used
        assert (ways[0]["connect_ns"] == 0) is is_used


def values_of(of: object, kind: type[Any]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in fields_of(kind)}


@needs_compiled
def test_a_request_on_a_connection_that_is_being_made_waits(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert compiled is not None
    for begin in (compiled.begin, interpreted_begin):
        conn, request = connection(pair[1], CONNECTING), request_of()
        assert begin(conn, request) is None
        assert (conn.request, request.was_written) == (request, False)


@needs_compiled
def test_a_write_takes_what_the_kernel_takes_and_says_why_it_takes_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert compiled is not None
    server, client = pair
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    for write in (compiled.write_request, interpreted_write_request):
        conn, request = in_a_body(client, payload=bytes(8 * 2**20))
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
        conn, _ = in_a_body(client, payload=b"more")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            write(conn)


def test_a_request_begins_with_what_was_prepared_and_nothing_else() -> None:
    session, kept = object(), bytearray()
    prepared = PreparedTurn(b"GET ", b" end", 4, 5, 6, 7)
    request = Request(prepared, b"run-", 1, 12, 3, 8, session, kept)
    given = {"payload": b"GET run-800000000012 end", "bytes_out": 24, "entry": 4, "turn": 5,
             "input_tokens": 6, "requested_tokens": 7, "phase": 1, "index": 12, "due_wall_ns": 3,
             "flags": 8, "session": session, "kept": kept}  # fmt: skip
    rest = {name: getattr(request, name) for name in fields_of(RequestFields) if name not in given}
    assert {name: getattr(request, name) for name in given} == given
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
def test_a_request_of_anything_else_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, IndexError, OverflowError)):
        Request(*arguments)


def test_a_connection_that_nobody_holds_is_freed_with_what_it_holds(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    before = len(gc.get_objects())
    for _ in range(1_000):
        conn = connection(pair[1])
        conn.request = request_of(session=[1], kept=bytearray(100), payload=b"payload")
    del conn
    assert len(gc.get_objects()) < before + 100


@needs_compiled
def test_what_is_shared_has_one_place_on_both_sides() -> None:
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
def test_a_constant_that_the_compiled_steps_need_cannot_be_forgotten() -> None:
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
def test_the_compiled_fields_are_the_plain_ones(fields: type[Any], plain: type[Any]) -> None:
    assert sorted(fields_of(fields)) == sorted(plain.__slots__)


@needs_compiled
def test_a_compiled_request_begins_as_a_plain_one() -> None:
    arguments: Any = PreparedTurn(b"GET ", b" end", 4, 5, 6, 7), b"run-", 1, 12, 3, 8
    for more in ((), ("session",), ("session", bytearray(b"kept"))):
        made = Request(*arguments, *more), PlainRequestFields(*arguments, *more)
        one, other = ({n: getattr(r, n) for n in PlainRequestFields.__slots__} for r in made)
        assert one == other


def compiled_receive(conn: Connection) -> Any:
    """A read that is nothing but a read."""
    assert compiled is not None
    for left, value in taken(compiled.take_ready, conn, 0):
        if left == Unhandled.FAILED:
            raise value
        return value
    return None


RECEIVES = [
    pytest.param(interpreted_receive, id="interpreted"),
    pytest.param(compiled_receive, id="compiled", marks=needs_compiled),
]


@pytest.mark.parametrize("receive", RECEIVES)
def test_a_read_has_its_bytes_its_stamp_and_the_time(
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
