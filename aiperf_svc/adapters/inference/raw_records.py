"""Raw records on their way out: what the client has of each request, as packed rows and raw bytes.

A response's bytes gather in its connection, and leave in fragments long before a long response has
ended, so that a held connection stays small. Fragments of all connections share a batch, which
leaves when it is full or with the next housekeeping tick.
"""

from collections.abc import Callable
from typing import Final

from aiperf_svc.adapters.inference.connection import Connection
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import FRAGMENT, READ, Flag

BATCH_BYTES: Final = 262_144
BATCH_FRAGMENTS: Final = 512
"""A batch leaves when it has either."""

_pack_fragment, _pack_read = FRAGMENT.pack, READ.pack
_READ_BYTES: Final = READ.size
_BATCH_FRAGMENT_BYTES: Final = BATCH_FRAGMENTS * FRAGMENT.size
_COMPLETED, _FINAL = int(Outcome.COMPLETED), int(Flag.FINAL)


class RawRecords:
    """Packs requests; `on_batch(fragments, reads, bodies, last_seq)` takes a finished batch."""

    def __init__(self, on_batch: Callable[[bytes, bytes, bytes, int], None]) -> None:
        self._on_batch = on_batch
        self.fragments = bytearray()
        self.reads = bytearray()
        self.bodies = bytearray()
        """Who adds to these three itself, as a compiled read does, calls `flush_if_full` then."""
        self.last_seq = 0
        """Number of the request that ended last."""

    def add_read(
        self, conn: Connection, data: bytes, stamp_wall_ns: int, polled_wall_ns: int, now: int
    ) -> None:
        """One read of a response."""
        conn.bytes_in += len(data)
        row = _pack_read(stamp_wall_ns, polled_wall_ns, now, len(data))
        if conn.buffer is None:
            conn.buffer = data
            conn.read_rows = row
        else:
            if type(conn.buffer) is bytes:
                conn.buffer = bytearray(conn.buffer)
                conn.read_rows = bytearray(conn.read_rows)
            conn.buffer += data
            conn.read_rows += row
        if conn.kept is not None:
            conn.kept += data

    def add_whole(
        self, conn: Connection, data: bytes, stamp_wall_ns: int, polled_wall_ns: int, now: int
    ) -> None:
        """A good response in one read: as `add_read` and `end` in one, because where responses are
        short enough for the client to matter nearly all are like this."""
        if conn.kept is not None:
            conn.kept += data
        self.last_seq = seq = self.last_seq + 1
        size = len(data)
        self.fragments += _pack_fragment(
            conn.request_id,
            seq,
            conn.index,
            conn.due,
            conn.start,
            conn.sent,
            stamp_wall_ns,
            stamp_wall_ns,
            conn.connect_ns,
            conn.tls_ns,
            conn.bytes_out,
            conn.body_offset,
            1,
            size,
            0,
            conn.entry,
            conn.input_tokens,
            0,
            conn.turn,
            conn.status,
            conn.flags | _FINAL,
            conn.phase,
            _COMPLETED,
            0,
            conn.framing,
            conn.requested_tokens,
        )
        self.reads += _pack_read(stamp_wall_ns, polled_wall_ns, now, size)
        self.bodies += data
        self.flush_if_full()

    def end(
        self, conn: Connection, outcome: int, error: int, end_wall_ns: int, message: bytes
    ) -> None:
        """The last fragment of a request."""
        self.last_seq += 1
        conn.flags |= _FINAL
        self._pack(conn, self.last_seq, outcome, error, end_wall_ns, message)

    def take_part(self, conn: Connection) -> None:
        """What has come of a response that goes on, as a fragment."""
        self._pack(conn, 0, 0, 0, 0, b"")

    def flush(self) -> None:
        """Hand over the batch as it is, when it holds anything."""
        if self.fragments:
            batch = bytes(self.fragments), bytes(self.reads), bytes(self.bodies)
            self.fragments.clear()
            self.reads.clear()
            self.bodies.clear()
            self._on_batch(*batch, self.last_seq)

    def _pack(
        self,
        conn: Connection,
        seq: int,
        outcome: int,
        error: int,
        end_wall_ns: int,
        message: bytes,
    ) -> None:
        body, rows = conn.buffer, conn.read_rows
        self.fragments += _pack_fragment(
            conn.request_id,
            seq,
            conn.index,
            conn.due,
            conn.start,
            conn.sent,
            conn.ack,
            end_wall_ns,
            conn.connect_ns,
            conn.tls_ns,
            conn.bytes_out,
            conn.body_offset,
            len(rows) // _READ_BYTES if rows is not None else 0,
            len(body) if body is not None else 0,
            len(message),
            conn.entry,
            conn.input_tokens,
            conn.part,
            conn.turn,
            conn.status,
            conn.flags,
            conn.phase,
            outcome,
            error,
            conn.framing,
            conn.requested_tokens,
        )
        if body is not None:
            self.bodies += body
            self.reads += rows
            conn.buffer = conn.read_rows = None
        if message:
            self.bodies += message
        conn.part += 1
        self.flush_if_full()

    def flush_if_full(self) -> None:
        """Hand over the batch when it is full."""
        if len(self.bodies) >= BATCH_BYTES or len(self.fragments) >= _BATCH_FRAGMENT_BYTES:
            self.flush()
