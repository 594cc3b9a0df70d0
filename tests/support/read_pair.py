"""Connected sockets, a client's view of one end, and the results of reading it bytewise."""

import itertools
import random
import select
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from aiperf_svc.adapters.inference import stamped_reads
from aiperf_svc.adapters.inference.connection import BODY, Connection
from aiperf_svc.adapters.inference.framing import ResponseFraming
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.adapters.inference.stamped_reads import Unhandled, part_bytes
from aiperf_svc.core.load.target_addresses import TargetAddress
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.core.responses.layouts import Layout
from aiperf_svc.protocol.records import READ_DTYPE, Framing

SO_TIMESTAMPNS = 35
HEAD_BYTES = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
compiled = stamped_reads.compiled  # type: ignore[attr-defined]
needs_compiled = pytest.mark.skipif(compiled is None, reason="the reads are not compiled: `make`")


def await_stamps(server: socket.socket, client: socket.socket) -> None:
    """Wait until the kernel stamps packets, shortly after the first socket requests stamps."""
    for _ in range(100_000):
        server.sendall(b"?")
        if client.recvmsg(1, 64)[1]:
            return
    raise AssertionError("the kernel does not stamp")


def fields_of(kind: type[Any]) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("__")]


def connection(sock: socket.socket, state: int = BODY) -> Connection:
    """Return a connection that no pool has connected."""
    nowhere: TargetAddress = None  # type: ignore[assignment]
    watched: select.epoll = None  # type: ignore[assignment]
    conn = Connection(sock, nowhere, watched, opened_mono_ns=0)
    conn.state = state
    return conn


def request_of(**fields: Any) -> Request:
    """Return a request with these fields; the others have their initial values."""
    request = Request(PreparedTurn(b"GET ", b" end", 4, 5, 6, 7), b"run-", 1, 12, 3, 8)
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def mid_stream(sock: socket.socket, **fields: Any) -> tuple[Connection, Request]:
    """Return a connection in the middle of a chunked response, and its request."""
    conn, request = connection(sock), request_of(framing=int(Framing.CHUNKED), **fields)
    conn.request = request
    return conn, request


class Received(NamedTuple):
    fragments: bytes
    bodies: bytes
    reads: list[tuple[int, int]]
    """Poll time and length of each read."""
    ends: list[int | str]
    """End codes that the client's own parser found, except for unfinished bodies."""
    rest: tuple[int, bytes, bool, int]


TakeReady = Callable[..., Any]
NO_RECORDS = RawRecords(lambda *batch: None)


def remaining_work(
    take_ready: TakeReady,
    conn: Connection,
    polled: int,
    layouts: dict[int, Layout] | None = None,
    records: RawRecords = NO_RECORDS,
) -> list[tuple[int, Any]]:
    """Return the work that remains for one connection when data is available."""
    events, conns = [(conn.fd, select.EPOLLIN)], {conn.fd: conn}
    rest = take_ready(events, 0, 1, conns, polled, layouts or {}, records)
    assert [found for found, *_ in rest] == [conn] * len(rest)
    return [(left, value) for _, left, value in rest]


def received(
    take_ready: TakeReady,
    pair: tuple[socket.socket, socket.socket],
    pieces: list[bytes],
    *,
    framing: Any = Framing.CHUNKED,
    left: int = 0,
) -> Received:
    """Return the result of receiving a body in these pieces."""
    server, client = pair
    conn, request = mid_stream(client)
    request.framing, conn.left = int(framing), left
    conn.keep_alive = False  # so the client handles its end
    batches: list[tuple[bytes, bytes, bytes]] = []
    records = RawRecords(lambda *batch: batches.append(batch[:3]))
    responses, ends = ResponseFraming(), []
    for number, piece in enumerate(pieces):
        awaited = request.bytes_in + len(piece)
        server.sendall(piece)
        while request.bytes_in < awaited:
            for what, value in remaining_work(take_ready, conn, number, {}, records):
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


def end_of(search: Callable[..., int | None], *arguments: Any) -> int | str | None:
    """Return the result of a search for the end of the body, or the name of the error."""
    try:
        return search(*arguments)
    except ProtocolViolation:
        return "broken"


def cut(body: bytes, rng: random.Random) -> list[bytes]:
    """Return the body in pieces, most of which end at a chunk boundary."""
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
