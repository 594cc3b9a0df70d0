"""One read of a socket, with the kernel's stamp of its bytes: the innermost step of the client.

There are tens of thousands of them a second. Nearly all are in the middle of an answer, where a
read is only to be stamped and kept, or a whole answer of a known layout, which is only to be
recorded. These two are also in C (`_stamped_reads.c`), which is used where it has been compiled and
halves what a chunk costs a worker. It hands all else back to the client, so what an answer means is
decided in one place; without it every read is `interpreted_receive`, and the client does all of it.
"""

import socket
import struct
from collections.abc import Mapping
from time import time_ns
from typing import Final, Literal

from aiperf_svc.adapters.connection import HEAD, Connection
from aiperf_svc.adapters.raw_records import RawRecords
from aiperf_svc.core.answer_layouts import Layout
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import FRAGMENT, READ, Flag, Framing

try:
    from aiperf_svc.adapters import _stamped_reads as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there

READ_SIZE: Final = 65_536
FRAGMENT_BYTES: Final = 4_096
"""Buffered bytes at which a part of an answer leaves: bounds the memory of a held connection."""
MAX_ANSWER_BYTES: Final = 256 * 2**20

_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(16)
_unpack_timespec = struct.Struct("@qq").unpack

Read = tuple[bytes, int, int]
"""Bytes (none at the end of the stream), the kernel's stamp of the last of them (wall clock, ns; 0
if it gave none), and the time at which our code had them (ns)."""


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


def interpreted_take_first(
    conn: Connection, polled_wall_ns: int, layouts: Mapping[int, Layout], records: RawRecords
) -> Read | int | None:
    """What has come for a connection whose answer has yet to begin, polled last at
    `polled_wall_ns`.

    A stamp when that was a whole answer of one of the `layouts`: it is in the `records` as
    `add_whole` puts it there, and the caller goes on from there. Else as `interpreted_receive`.
    """
    return interpreted_receive(conn)


def interpreted_take_more(conn: Connection, polled_wall_ns: int) -> Read | Literal[True] | None:
    """What has come for a connection in the middle of its answer, polled last at `polled_wall_ns`.

    None when nothing is left to do: there was nothing, or it has been added to the connection. True
    when with it there are `FRAGMENT_BYTES`. Else as `interpreted_receive`, and it is the caller's
    to add.
    """
    return interpreted_receive(conn)


if compiled is None:
    take_first, take_more = interpreted_take_first, interpreted_take_more
else:
    take_first, take_more = compiled.take_first, compiled.take_more
    compiled.set_constants(
        Framing.CHUNKED, FRAGMENT_BYTES, MAX_ANSWER_BYTES, HEAD, FRAGMENT.size, READ.size,
        Flag.FINAL, Outcome.COMPLETED,
    )  # fmt: skip
