from collections.abc import Mapping
from typing import Any

from aiperf_svc.adapters.inference.connection import Connection
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.tls_stream import TlsStream
from aiperf_svc.core.responses.layouts import Layout

Read = tuple[bytes, int, int]

class Fields:
    ack: int
    body_offset: int
    buffer: Any
    bytes_in: int
    bytes_out: int
    connect_ns: int
    due: int
    entry: int
    fd: int
    flags: int
    framing: int
    index: int
    input_tokens: int
    requested_tokens: int
    is_used: bool
    keep_alive: bool
    kept: bytearray | None
    left: int
    line: bytes
    opened_mono_ns: int
    part: int
    payload: bytes | None
    phase: int
    read_rows: Any
    request_id: int
    sent: int
    session: Any
    start: int
    started_mono_ns: int
    state: int
    status: int
    tls: TlsStream | None
    tls_ns: int
    turn: int
    unsent: memoryview | None

def begin(
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
) -> int: ...
def write_request(conn: Connection) -> int: ...
def pass_chunks(data: bytes, at: int) -> int: ...
def take_ready(
    events: list[tuple[int, int]],
    begin: int,
    end: int,
    connections: Mapping[int, Connection],
    polled_wall_ns: int,
    layouts: Mapping[int, Layout],
    records: RawRecords,
) -> list[tuple[Connection | None, Read | OSError | int | None]]: ...
def set_constants(
    chunked: int,
    fragment_bytes: int,
    first_parts: int,
    first_reads_bytes: int,
    max_response_bytes: int,
    idle: int,
    head: int,
    body: int,
    fragment_size: int,
    read_size: int,
    final: int,
    reused: int,
    completed: int,
    not_written: int,
) -> None: ...
