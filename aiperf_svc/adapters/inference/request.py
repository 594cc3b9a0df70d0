"""One request, from its bytes to the end of its response.

The load generator creates it, a connection carries it, and a record is written when it ends. A
request that is retried or moves to another address stays the same object on another connection.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from aiperf_svc.domain.request_ids import INDEX_BASE
from aiperf_svc.protocol.records import UNKNOWN_TOKENS, Flag

try:
    from aiperf_svc.adapters.inference import _stamped_reads as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # built without a C compiler

_REUSED, _RETRIED = int(Flag.REUSED), int(Flag.RETRIED)


class PreparedTurn(NamedTuple):
    """One turn of a dataset entry, ready to send."""

    before: bytes
    """HTTP bytes before the value of `X-Request-Id`."""
    after: bytes
    """HTTP bytes after it."""
    entry: int
    """Number of the entry."""
    turn: int
    input_tokens: int = UNKNOWN_TOKENS
    requested_tokens: int = UNKNOWN_TOKENS
    """Requested output tokens."""


class PlainRequestFields:
    """The fields of a request without the compiled steps."""

    __slots__ = (
        "ack_wall_ns",
        "body_offset",
        "buffer",
        "bytes_in",
        "bytes_out",
        "connect_ns",
        "due_wall_ns",
        "end_wall_ns",
        "entry",
        "flags",
        "framing",
        "index",
        "input_tokens",
        "kept",
        "moves",
        "part",
        "payload",
        "phase",
        "read_rows",
        "request_id",
        "requested_tokens",
        "sent_wall_ns",
        "session",
        "started_mono_ns",
        "status",
        "tls_ns",
        "turn",
        "write_wall_ns",
    )

    ack_wall_ns: int
    body_offset: int
    buffer: Any
    bytes_in: int
    bytes_out: int
    connect_ns: int
    due_wall_ns: int
    end_wall_ns: int
    entry: int
    flags: int
    framing: int
    index: int
    input_tokens: int
    kept: bytearray | None
    moves: int
    part: int
    payload: bytes
    phase: int
    read_rows: Any
    request_id: int
    requested_tokens: int
    sent_wall_ns: int
    session: Any
    write_wall_ns: int
    started_mono_ns: int
    status: int
    tls_ns: int
    turn: int

    def __init__(
        self,
        prepared: PreparedTurn,
        id_prefix: bytes,
        phase: int,
        index: int,
        due_wall_ns: int,
        flags: int,
        session: Any = None,
        kept: bytearray | None = None,
    ) -> None:
        before, after, self.entry, self.turn, self.input_tokens, self.requested_tokens = prepared
        self.payload = b"%b%b%d%b" % (before, id_prefix, INDEX_BASE + index, after)
        self.bytes_out = len(self.payload)
        self.phase = phase
        self.index = index
        self.due_wall_ns = due_wall_ns
        self.flags = flags
        self.session = session
        self.kept = kept
        self.buffer = self.read_rows = None
        self.write_wall_ns = self.sent_wall_ns = self.ack_wall_ns = self.end_wall_ns = 0
        self.body_offset = self.bytes_in = self.framing = self.part = self.status = 0
        self.connect_ns = self.tls_ns = self.started_mono_ns = self.moves = self.request_id = 0


if TYPE_CHECKING or compiled is None:
    RequestFields = PlainRequestFields
else:
    RequestFields = compiled.RequestFields
    """The same fields. The compiled steps access them without a lookup by name."""


class Request(RequestFields):
    """One request, with the state and the unshipped bytes of its response.

    It is created from a prepared turn, the prefix of its `X-Request-Id` (which its credit's index
    completes), its phase, that index, its due time, and its flags. `session` is for the caller.
    With several targets, `target` is the target of the conversation. If `kept` is a bytearray, the
    raw response is collected in it.

    Times are 0 until they are known. `payload` holds the bytes to write until the response starts.
    After that the request cannot be written again, and the bytes are freed, because prompts would
    be most of the memory of open connections. `buffer` and `read_rows` hold received data that has
    not been shipped: bytes after one read, a bytearray after more. `part` counts the shipped parts,
    `moves` the addresses that did not accept the request.
    """

    __slots__ = ()

    @property
    def was_written(self) -> bool:
        """Return whether its first byte was written on its current connection."""
        return self.write_wall_ns != 0

    def start_over(self, request_id: int) -> None:
        """Prepare a request that has received no byte of a response for another connection."""
        self.request_id = request_id
        self.flags = (self.flags | _RETRIED) & ~_REUSED
        self.write_wall_ns = self.sent_wall_ns = self.connect_ns = self.tls_ns = 0
