"""One write or one read of a socket, with its stamps: the innermost steps of the client.

There are tens of thousands of them a second. Nearly all reads are in the middle of a response,
where one is only to be stamped and kept, or are a whole response of a known layout, which is only
to be recorded. These are also in C (`_stamped_reads.c`), and so are a request's beginning and its
write; it is used where it has been compiled and takes a third of the time. It hands all else back
to the client, so what a response means is decided in one place; without it every read is
`interpreted_receive`, and the client does all of it.
"""

import select
import socket
import struct
from collections.abc import Mapping
from time import monotonic_ns, time_ns
from typing import Any, Final

from aiperf_svc.adapters.inference.connection import BODY, HEAD, IDLE, Connection
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.core.responses.layouts import Layout
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import FRAGMENT, READ, Flag, Framing

try:
    from aiperf_svc.adapters.inference import _stamped_reads as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there

READ_SIZE: Final = 65_536
FRAGMENT_BYTES: Final = 4_096
"""Buffered bytes at which a part of a response leaves: bounds the memory of a held connection."""
FIRST_PARTS: Final = 16
"""Sizes that the first part of a response may have. Streams that begin together would otherwise all
fill their buffers, and send them on, at the same moment for as long as they last."""
FIRST_READS_BYTES: Final = 4 * READ.size
"""Rows of reads after which a response is in its middle: headers may come alone, and a role, and
the third read has the first token at the latest."""
MAX_RESPONSE_BYTES: Final = 255 * 2**20
"""Its parts must be counted by 16 bits, the last one included."""
MAX_KEPT_BYTES: Final = 16 * 2**20
"""Of a response that a worker keeps whole, since the conversation's next request repeats it."""

NOT_WRITTEN: Final = -1
"""Instead of bytes that are left to write."""

_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(16)
_REUSED: Final = int(Flag.REUSED)
_unpack_timespec = struct.Struct("@qq").unpack

Read = tuple[bytes, int, int]
"""Bytes (none at the end of the stream), the kernel's stamp of the last of them (wall clock, ns; 0
if it gave none), and the time at which our code had them (ns)."""
Unhandled = Read | OSError | int | None
"""What is left to do for a connection: take what was read; end it because reading failed; look at
its event's mask, which says more than that there is something to read; with True, note that its
response has come to its middle, by `FIRST_READS_BYTES` of rows; with None, go on after a response
that is recorded and whose last stamp is in `ack`."""


def interpreted_begin(
    conn: Connection,
    before: bytes,
    id_prefix: bytes,
    number: int,
    after: bytes,
    request_id: int,
    phase: int,
    index: int,
    entry: int,
    turn: int,
    due_wall_ns: int,
    flags: int,
    input_tokens: int,
    requested_tokens: int,
    session: Any,
) -> int:
    """A connection's next request: its bytes are `before`, the prefix of its `X-Request-Id`, the
    `number` in which that ends, and `after`. On an idle connection without TLS they are written.

    Bytes that the kernel did not take, or NOT_WRITTEN. Raises OSError.
    """
    conn.payload = payload = b"%b%b%d%b" % (before, id_prefix, number, after)
    conn.bytes_out = len(payload)
    conn.request_id = request_id
    conn.phase = phase
    conn.index = index
    conn.entry = entry
    conn.turn = turn
    conn.due = due_wall_ns
    conn.flags = flags
    conn.input_tokens = input_tokens
    conn.requested_tokens = requested_tokens
    conn.session = session
    conn.start = conn.bytes_in = conn.part = 0
    if conn.state != IDLE or conn.tls is not None:
        return NOT_WRITTEN
    return interpreted_write_request(conn)


def part_bytes(conn: Connection) -> int:
    """Buffered bytes at which the next part of a response leaves."""
    if conn.part:
        return FRAGMENT_BYTES
    return FRAGMENT_BYTES // FIRST_PARTS * (1 + conn.request_id % FIRST_PARTS)


def stamp_start(conn: Connection) -> None:
    """The connection's request is about to be written."""
    conn.state = HEAD
    conn.requests += 1
    if conn.is_used:
        conn.flags |= _REUSED
    # Of the response before: a request that never gets a response has none of them.
    conn.status = conn.ack = conn.body_offset = 0
    conn.started_mono_ns = monotonic_ns()
    conn.start = time_ns()


def interpreted_write_request(conn: Connection) -> int:
    """Write a connection's request with the times before and after; the bytes that the kernel did
    not take. Raises OSError."""
    stamp_start(conn)
    assert conn.payload is not None
    try:
        count: int = conn.sock.send(conn.payload)
    except BlockingIOError:
        count = 0
    conn.sent = time_ns()
    return len(conn.payload) - count


def interpreted_receive(conn: Connection) -> Read | None:
    """What has come for a connection; None when that is nothing. Raises OSError."""
    try:
        data, ancillary, _, _ = conn.sock.recvmsg(READ_SIZE, _ANCILLARY_BYTES)
    except BlockingIOError:
        return None
    now = time_ns()
    if not ancillary:
        return data, 0, now
    seconds, nanoseconds = _unpack_timespec(ancillary[0][2])
    return data, seconds * 1_000_000_000 + nanoseconds, now


def interpreted_take_ready(
    events: list[tuple[int, int]],
    begin: int,
    end: int,
    connections: Mapping[int, Connection],
    polled_wall_ns: int,
    layouts: Mapping[int, Layout],
    records: RawRecords,
) -> list[tuple[Connection | None, Unhandled]]:
    """Read what has come for the connections of `events[begin:end]`, descriptors and masks, of
    which none had anything at `polled_wall_ns`.

    What is left to do of each, and for descriptors that are of no connection just these. Nothing is
    left where nothing had come, or where it went on with a response: it has been added to the
    connection, and is in the `records` as `take_part` puts it there when that was enough. A whole
    response of one of the `layouts`, or a good one that ended and whose connection stays open, is
    in the `records` as `add_whole` or `end` put it there, and its connection is idle.
    """
    rest: list[tuple[Connection | None, Unhandled]] = []
    for fd, mask in events[begin:end]:
        conn = connections.get(fd)
        if conn is None:
            rest.append((None, fd))
        elif mask != select.EPOLLIN:
            rest.append((conn, mask))
        else:
            try:
                read = interpreted_receive(conn)
            except OSError as error:
                rest.append((conn, error))
            else:
                if read is not None:
                    rest.append((conn, read))
    return rest


def interpreted_pass_chunks(data: bytes, at: int) -> int:
    """Offset in `data` after the whole chunks from `at` on, beyond its end when the last of them
    goes on in a later read.

    Where it stops the caller goes on, so none is a right response.
    """
    return at


if compiled is None:
    pass_chunks = interpreted_pass_chunks
    begin, write_request = interpreted_begin, interpreted_write_request
    take_ready = interpreted_take_ready
else:
    pass_chunks = compiled.pass_chunks
    begin, write_request = compiled.begin, compiled.write_request
    take_ready = compiled.take_ready
    compiled.set_constants(
        Framing.CHUNKED, FRAGMENT_BYTES, FIRST_PARTS, FIRST_READS_BYTES, MAX_RESPONSE_BYTES,
        IDLE, HEAD, BODY, FRAGMENT.size, READ.size, Flag.FINAL, Flag.REUSED, Outcome.COMPLETED,
        NOT_WRITTEN,
    )  # fmt: skip
