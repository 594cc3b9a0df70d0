"""Writes or reads a socket once, with stamps: the innermost steps of the client.

There are tens of thousands of them a second. Nearly all reads are in the middle of a response,
where one is only to be stamped and kept, or are a whole response of a known layout, which is only
to be recorded. These are also in C (`_stamped_reads.c`), and so are a request's beginning and its
write; it is used where it has been compiled and takes a third of the time. It hands all else back
to the client, so what a response means is decided in one place; without it every read is
`interpreted_receive`, and the client does all of it.
"""

import re
import select
import socket
import struct
from collections.abc import Mapping
from enum import IntEnum
from time import monotonic_ns, time_ns
from typing import Any, Final

import numpy as np

from aiperf_svc.adapters.inference.connection import BODY, HEAD, IDLE, Connection
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.core.responses.layouts import Layout
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.domain.request_ids import INDEX_BASE
from aiperf_svc.protocol.records import FRAGMENT_DTYPE, READ, READ_DTYPE, Flag, Framing

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
"""Largest response that a worker keeps whole, since the conversation's next request repeats it."""

_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(16)
_REUSED: Final = int(Flag.REUSED)
_DONE_BYTES: Final = 32
"""Longest end of a stream: a line end, `data: [DONE]`, two line ends, and the end of a chunk."""
_ends_in_done = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\][\r\n]+\Z").search
_unpack_timespec = struct.Struct("@qq").unpack

Read = tuple[bytes, int, int]
"""Bytes (none at the end of the stream), the kernel's stamp of the last of them (wall clock, ns; 0
if it gave none), and the time at which our code had them (ns)."""


class Unhandled(IntEnum):
    """What the caller has to do for an event, and what comes with it."""

    WAS_READ = 0
    """Process what was read, a `Read`."""
    FAILED = 1
    """End the request, because reading failed with this OSError."""
    HAS_EVENT = 2
    """Look at the event's mask, which says more than that there is something to read."""
    IS_OTHER = 3
    """Look at the descriptor, which is of no connection."""
    IN_MIDDLE = 4
    """Note that the response has come to its middle, by `FIRST_READS_BYTES` of rows."""
    HAS_ENDED = 5
    """Go on after this `Request`, whose good response is recorded."""
    IS_DONE = 6
    """Note that the response has come to its `[DONE]`, and its framing goes on."""


WAS_READ, FAILED = int(Unhandled.WAS_READ), int(Unhandled.FAILED)
HAS_EVENT, IS_OTHER = int(Unhandled.HAS_EVENT), int(Unhandled.IS_OTHER)
IN_MIDDLE, HAS_ENDED = int(Unhandled.IN_MIDDLE), int(Unhandled.HAS_ENDED)
IS_DONE = int(Unhandled.IS_DONE)


def interpreted_begin(conn: Connection, request: Request) -> int | None:
    """Give a request to a connection, and write it if that is idle and without TLS.

    Returns the number of bytes that the kernel did not take; None if nothing was written. Raises
    OSError.
    """
    conn.request = request
    if conn.state != IDLE or conn.tls is not None:
        return None
    return interpreted_write_request(conn)


def part_bytes(request: Request) -> int:
    """Return the number of buffered bytes at which the next part of a response leaves."""
    if request.part:
        return FRAGMENT_BYTES
    return FRAGMENT_BYTES // FIRST_PARTS * (1 + request.request_id % FIRST_PARTS)


def stamp_start(conn: Connection, request: Request) -> None:
    """Note that the connection's request is about to be written."""
    conn.state = HEAD
    conn.requests += 1
    if conn.is_used:
        request.flags |= _REUSED
    else:
        request.connect_ns, request.tls_ns = conn.connect_ns, conn.tls_ns
    request.started_mono_ns = monotonic_ns()
    request.write_wall_ns = time_ns()


def interpreted_write_request(conn: Connection) -> int:
    """Write a connection's request, with the times before and after. Returns the number of bytes
    that the kernel did not take. Raises OSError."""
    request = conn.request
    assert request is not None
    stamp_start(conn, request)
    try:
        count = conn.sock.send(request.payload)
    except BlockingIOError:
        count = 0
    request.sent_wall_ns = time_ns()
    return len(request.payload) - count


def interpreted_has_unread(conn: Connection) -> bool:
    """Return whether something has come on an idle connection since its last response: bytes that
    no request has asked for, which would be taken for the next response, or its end."""
    if not conn.is_used:
        return False
    try:
        conn.sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_readable(conn: Connection) -> bool:
    """Return whether there are bytes to read, and not only the end, on a connection without TLS."""
    try:
        return conn.tls is None and bool(conn.sock.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def interpreted_receive(conn: Connection) -> Read | None:
    """Read what has come for a connection; None when that is nothing. Raises OSError."""
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
) -> list[tuple[Connection | None, int, Any]]:
    """Read what has come for the connections of `events[begin:end]`, descriptors and masks, of
    which none had anything at `polled_wall_ns`.

    Returns each event that the caller has to handle: its connection, the kind of what is unhandled,
    and what comes with it. Nothing is unhandled if nothing had come. If a response goes on, its
    bytes are in the request, or in the `records` as `take_part` puts them there when they are
    enough; after `[DONE]`, the request's end is the read's stamp. If a whole response has one of
    the `layouts`, or a good one has ended and its connection stays open, it is in the `records` as
    `add_whole` or `end` puts it there, and the connection is idle.
    """
    unhandled: list[tuple[Connection | None, int, Any]] = []
    for fd, mask in events[begin:end]:
        conn = connections.get(fd)
        if conn is None:
            unhandled.append((None, IS_OTHER, fd))
        elif mask != select.EPOLLIN:
            unhandled.append((conn, HAS_EVENT, mask))
        else:
            try:
                read = interpreted_receive(conn)
            except OSError as error:
                unhandled.append((conn, FAILED, error))
            else:
                if read is not None:
                    unhandled.append((conn, WAS_READ, read))
    return unhandled


def interpreted_pass_chunks(data: bytes, at: int) -> int:
    """Return the offset in `data` after the whole chunks from `at` on, beyond its end when the last
    of them goes on in a later read.

    The caller goes on where this stops, so to pass none is right too.
    """
    return at


def is_done(gathered: bytes | bytearray, framing: int) -> bool:
    """Return whether the last line of these bytes of a stream is the whole line `data: [DONE]`; the
    last `framing` bytes belong to no event.

    As text in a token it is part of a JSON string, in which no line ends.
    """
    tail = bytes(gathered[-_DONE_BYTES:])
    return b"[DONE]" in tail and _ends_in_done(tail[: len(tail) - framing]) is not None


def _columns_of(dtype: np.dtype[Any]) -> dict[str, tuple[int, int, bool]]:
    """Return the offset and the size of each column of a row, and whether it has a sign."""
    fields = {name: dtype.fields[name] for name in dtype.names or ()} if dtype.fields else {}
    return {name: (at, kind.itemsize, kind.kind == "i") for name, (kind, at, *_) in fields.items()}


def _places_of(names: tuple[str, ...]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


SHARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "READ": _columns_of(READ_DTYPE),
    "FRAGMENT": _columns_of(FRAGMENT_DTYPE),
    "PreparedTurn": _places_of(PreparedTurn._fields),
    "Layout": _places_of(Layout._fields),
}
"""What the compiled steps read and write by place. They state the same from their own sources."""
CONSTANTS: Final = {
    "CHUNKED": Framing.CHUNKED,
    "FRAGMENT_BYTES": FRAGMENT_BYTES,
    "FIRST_PARTS": FIRST_PARTS,
    "FIRST_READS_BYTES": FIRST_READS_BYTES,
    "MAX_RESPONSE_BYTES": MAX_RESPONSE_BYTES,
    "IDLE": IDLE,
    "HEAD": HEAD,
    "BODY": BODY,
    "FINAL": int(Flag.FINAL),
    "REUSED": int(Flag.REUSED),
    "STREAMED": int(Flag.STREAMED),
    "COMPLETED": int(Outcome.COMPLETED),
    "INDEX_BASE": INDEX_BASE,
    **{kind.name: int(kind) for kind in Unhandled},
}
"""What they know by name."""


def differences(compiled_shared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names in `SHARED` whose place differs on the two sides, or that one side lacks."""
    one, other = (
        {
            f"{kind}.{name}": place
            for kind, places in shared.items()
            for name, place in places.items()
        }
        for shared in (SHARED, compiled_shared)
    )
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


if compiled is None:
    pass_chunks = interpreted_pass_chunks
    begin, write_request = interpreted_begin, interpreted_write_request
    has_unread = interpreted_has_unread
    take_ready = interpreted_take_ready
else:
    if different := differences(compiled.SHARED):
        raise ImportError(f"_stamped_reads was compiled for other {', '.join(different)}: `make`")
    compiled.set_constants(CONSTANTS)
    pass_chunks = compiled.pass_chunks
    begin, write_request = compiled.begin, compiled.write_request
    has_unread = compiled.has_unread
    take_ready = compiled.take_ready
