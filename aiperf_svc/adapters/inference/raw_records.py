"""Packs the client's data of each request into raw records: rows and raw bytes.

A response's bytes are collected in its request and shipped in fragments, so a connection with a
long response needs little memory. The fragments of all connections share a batch. A batch is
shipped when it is full or at the next housekeeping tick.
"""

from collections.abc import Callable
from typing import Final

from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import FRAGMENT, READ, Flag

BATCH_BYTES: Final = 262_144
BATCH_FRAGMENTS: Final = 512
"""A batch is shipped when it reaches either limit."""

_pack_fragment, _pack_read = FRAGMENT.pack, READ.pack
_READ_BYTES: Final = READ.size
_BATCH_FRAGMENT_BYTES: Final = BATCH_FRAGMENTS * FRAGMENT.size
_COMPLETED, _FINAL = int(Outcome.COMPLETED), int(Flag.FINAL)


class RawRecords:
    """Packs requests; `on_batch(fragments, reads, bodies, last_seq)` receives a finished batch."""

    def __init__(self, on_batch: Callable[[bytes, bytes, bytes, int], None]) -> None:
        self._on_batch = on_batch
        self.fragments = bytearray()
        self.reads = bytearray()
        self.bodies = bytearray()
        """Code that appends directly to these three, as a compiled read does, must call
        `flush_if_full`."""
        self.last_seq = 0
        """Number of the last request that has ended."""

    def add_read(
        self, request: Request, data: bytes, stamp_wall_ns: int, polled_wall_ns: int, now: int
    ) -> None:
        request.bytes_in += len(data)
        row = _pack_read(stamp_wall_ns, polled_wall_ns, now, len(data))
        if request.buffer is None:
            request.buffer = data
            request.read_rows = row
        else:
            if type(request.buffer) is bytes:
                request.buffer = bytearray(request.buffer)
                request.read_rows = bytearray(request.read_rows)
            request.buffer += data
            request.read_rows += row
        if request.kept is not None:
            request.kept += data

    def add_whole(
        self, request: Request, data: bytes, stamp_wall_ns: int, polled_wall_ns: int, now: int
    ) -> None:
        """Add a successful response that arrived in one read, with the same result as `add_read`
        and `end`. Nearly all responses are of this kind if they are so short that the client's
        speed matters."""
        if request.kept is not None:
            request.kept += data
        self.last_seq = seq = self.last_seq + 1
        size = len(data)
        self.fragments += _pack_fragment(
            request.request_id,
            seq,
            request.index,
            request.due_wall_ns,
            request.write_wall_ns,
            request.sent_wall_ns,
            stamp_wall_ns,
            stamp_wall_ns,
            request.connect_ns,
            request.tls_ns,
            request.bytes_out,
            request.body_offset,
            1,
            size,
            0,
            request.entry,
            request.input_tokens,
            0,
            request.turn,
            request.status,
            request.flags | _FINAL,
            request.phase,
            _COMPLETED,
            0,
            request.framing,
            request.requested_tokens,
        )
        self.reads += _pack_read(stamp_wall_ns, polled_wall_ns, now, size)
        self.bodies += data
        self.flush_if_full()

    def end(self, request: Request, outcome: int, error: int, message: bytes) -> None:
        """Add the last fragment of a request."""
        self.last_seq += 1
        request.flags |= _FINAL
        self._pack(request, self.last_seq, outcome, error, message)

    def take_part(self, request: Request) -> None:
        """Add the received part of an incomplete response as a fragment."""
        self._pack(request, 0, 0, 0, b"")

    def flush(self) -> None:
        """Ship the batch unless it is empty."""
        if self.fragments:
            batch = bytes(self.fragments), bytes(self.reads), bytes(self.bodies)
            self.fragments.clear()
            self.reads.clear()
            self.bodies.clear()
            self._on_batch(*batch, self.last_seq)

    def _pack(
        self,
        request: Request,
        seq: int,
        outcome: int,
        error: int,
        message: bytes,
    ) -> None:
        body, rows = request.buffer, request.read_rows
        self.fragments += _pack_fragment(
            request.request_id,
            seq,
            request.index,
            request.due_wall_ns,
            request.write_wall_ns,
            request.sent_wall_ns,
            request.ack_wall_ns,
            request.end_wall_ns,
            request.connect_ns,
            request.tls_ns,
            request.bytes_out,
            request.body_offset,
            len(rows) // _READ_BYTES if rows is not None else 0,
            len(body) if body is not None else 0,
            len(message),
            request.entry,
            request.input_tokens,
            request.part,
            request.turn,
            request.status,
            request.flags,
            request.phase,
            outcome,
            error,
            request.framing,
            request.requested_tokens,
        )
        if body is not None:
            self.bodies += body
            self.reads += rows
            request.buffer = request.read_rows = None
        if message:
            self.bodies += message
        request.part += 1
        self.flush_if_full()

    def flush_if_full(self) -> None:
        if len(self.bodies) >= BATCH_BYTES or len(self.fragments) >= _BATCH_FRAGMENT_BYTES:
            self.flush()
