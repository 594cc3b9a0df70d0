"""Writes or reads a socket once, with timestamps: the innermost steps of the client.

They run tens of thousands of times per second. Nearly all reads are in the middle of a response and
only have to be timestamped and stored, or are a complete response of a known layout, which only has
to be recorded. These reads and the start and write of a request are also implemented in C
(`_stamped_reads.c`), which takes a third of the time. The C code returns everything else to the
client, so only one place interprets responses. Without it, `interpreted_receive` does each read and
the client does the rest.
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
    compiled = None  # type: ignore[assignment]  # built without a C compiler

READ_SIZE: Final = 65_536
FRAGMENT_BYTES: Final = 4_096
"""Buffered bytes at which a part of a response is shipped; limits a connection's memory."""
FIRST_PARTS: Final = 16
"""Sizes of the first part of a response. With equal sizes, streams that start together would fill
their buffers, and ship them, at the same times for their whole duration."""
FIRST_READS_BYTES: Final = 4 * READ.size
"""Size of read rows after which a response counts as started. Headers may arrive alone, and so may
a role; the third read has the first token at the latest."""
MAX_RESPONSE_BYTES: Final = 255 * 2**20
"""The number of parts, including the last one, must fit into 16 bits."""
MAX_KEPT_BYTES: Final = 16 * 2**20
"""Maximum size of a response that a worker keeps for the conversation's next request."""

_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(16)
_REUSED: Final = int(Flag.REUSED)
_DONE_BYTES: Final = 32
"""Maximum length of the end of a stream: a line end, `data: [DONE]`, two line ends, and the end of
a chunk."""
_ends_in_done = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\][\r\n]+\Z").search
_unpack_timespec = struct.Struct("@qq").unpack

Read = tuple[bytes, int, int]
"""Bytes (empty at the end of the stream), the kernel's timestamp of the last of them (wall clock,
ns; 0 if missing), and the time at which this process got them (ns)."""


class Unhandled(IntEnum):
    """What the caller must do for an event, with the event's argument."""

    WAS_READ = 0
    """Process a `Read`."""
    FAILED = 1
    """End the request: reading failed with this OSError."""
    HAS_EVENT = 2
    """Check the event's mask, which has more than "readable"."""
    IS_OTHER = 3
    """Handle the descriptor, which is not a connection."""
    IN_MIDDLE = 4
    """Record that the response has started, with `FIRST_READS_BYTES` of rows."""
    HAS_ENDED = 5
    """Continue after this `Request`, whose successful response is recorded."""
    IS_DONE = 6
    """Record that `[DONE]` has arrived while the framing continues."""


WAS_READ, FAILED = int(Unhandled.WAS_READ), int(Unhandled.FAILED)
HAS_EVENT, IS_OTHER = int(Unhandled.HAS_EVENT), int(Unhandled.IS_OTHER)
IN_MIDDLE, HAS_ENDED = int(Unhandled.IN_MIDDLE), int(Unhandled.HAS_ENDED)
IS_DONE = int(Unhandled.IS_DONE)


def interpreted_begin(conn: Connection, request: Request) -> int | None:
    """Assign a request to a connection, and write it if the connection is idle and without TLS.

    Returns the number of bytes that the kernel did not accept; None if nothing was written. Raises
    OSError.
    """
    conn.request = request
    if conn.state != IDLE or conn.tls is not None:
        return None
    return interpreted_write_request(conn)


def part_bytes(request: Request) -> int:
    """Return the number of buffered bytes at which the next part of a response is shipped."""
    if request.part:
        return FRAGMENT_BYTES
    return FRAGMENT_BYTES // FIRST_PARTS * (1 + request.request_id % FIRST_PARTS)


def stamp_start(conn: Connection, request: Request) -> None:
    conn.state = HEAD
    conn.requests += 1
    if conn.is_used:
        request.flags |= _REUSED
    else:
        request.connect_ns, request.tls_ns = conn.connect_ns, conn.tls_ns
    request.started_mono_ns = monotonic_ns()
    request.write_wall_ns = time_ns()


def interpreted_write_request(conn: Connection) -> int:
    """Write a connection's request and record the times before and after. Returns the number of
    bytes that the kernel did not accept. Raises OSError."""
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
    """Return whether an idle connection received something after its last response: unrequested
    bytes, which would be mistaken for the next response, or the end of the connection."""
    if not conn.is_used:
        return False
    try:
        conn.sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def has_unrequested(conn: Connection) -> bool:
    """Return whether an idle connection that is not reused has unread bytes of a response, and not
    only its end or TLS records of the protocol itself."""
    try:
        if conn.tls is None:
            return bool(conn.sock.recv(1, socket.MSG_PEEK))
        conn.tls.receive(conn.sock.recv(READ_SIZE))
        return bool(conn.tls.decrypted())
    except OSError:
        return False


def interpreted_receive(conn: Connection) -> Read | None:
    """Read a connection once; None if there is nothing to read. Raises OSError."""
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
    """Read the connections of `events[begin:end]`, which are descriptors and masks. None of them
    had anything to read at `polled_wall_ns`.

    Returns the events that the caller has to handle: the connection, the kind of the event, and its
    argument. Events without data are left out. The bytes of an incomplete response are stored in
    the request, or shipped to `records` like in `take_part` when there are enough. After `[DONE]`,
    the request's end is the read's timestamp. A complete response with one of the `layouts`, or a
    successful one on a connection that stays open, is added to `records` like in `add_whole` or
    `end`, and its connection becomes idle.
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
    """Return the offset in `data` after the complete chunks from `at` on. It is beyond the end if
    the last of them continues in a later read.

    The caller continues from there, so passing no chunk is correct too.
    """
    return at


def is_done(gathered: bytes | bytearray, framing: int) -> bool:
    """Return whether the last line of these bytes of a stream is `data: [DONE]`. The last `framing`
    bytes do not belong to an event.

    Inside a token's text, `[DONE]` is part of a JSON string, which contains no line end.
    """
    tail = bytes(gathered[-_DONE_BYTES:])
    return b"[DONE]" in tail and _ends_in_done(tail[: len(tail) - framing]) is not None


def _columns_of(dtype: np.dtype[Any]) -> dict[str, tuple[int, int, bool]]:
    """Return the offset, size and signedness of each column of a row."""
    fields = {name: dtype.fields[name] for name in dtype.names or ()} if dtype.fields else {}
    return {name: (at, kind.itemsize, kind.kind == "i") for name, (kind, at, *_) in fields.items()}


def _places_of(names: tuple[str, ...]) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}


SHARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "READ": _columns_of(READ_DTYPE),
    "FRAGMENT": _columns_of(FRAGMENT_DTYPE),
    "PreparedTurn": _places_of(PreparedTurn._fields),
    "Layout": _places_of(Layout._fields),
}
"""Positions that the compiled steps use. They export the same from their own sources."""
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
"""Constants that the compiled steps use by name."""


def differences(compiled_shared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names in `SHARED` that differ between the two sides or are missing on one."""
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
