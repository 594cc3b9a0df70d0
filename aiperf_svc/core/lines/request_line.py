"""The content of a line of profile_export.jsonl and of the file inputs.json, as sources of their
JSON Schemas.

Both are written in pieces (`renderer`, `core/datasets/built`), since encoding such objects would
cost more than all other work for a request. Tests read the written lines as these structs.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class LineMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a request; `inter_chunk_latency` is a list of gaps."""

    value: int | float | tuple[float, ...]
    unit: str


class LineMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and times of a request. Times are nanoseconds since 1970."""

    session_num: int
    x_request_id: str
    x_correlation_id: str
    root_correlation_id: str
    parent_correlation_id: str | UnsetType = UNSET
    """Only for a stream that another stream started."""
    conversation_id: str
    turn_index: int
    credit_issued_ns: int
    request_start_ns: int
    request_end_ns: int
    finish_reason: int
    request_ack_ns: int | None
    worker_id: str
    record_processor_id: str
    benchmark_phase: str
    phase_index: int
    profiling_index: int
    phase_name: str
    phase_kind: str
    was_cancelled: bool
    context_overflow_skip: bool
    agent_depth: int


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed. `code` is the HTTP status, if there was a response."""

    code: int | None
    type: str
    message: str


class TraceData(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a request's bytes, with `--export-http-trace`. A chunk is a time and a size."""

    trace_type: str
    request_send_start_ns: int | UnsetType = UNSET
    request_chunks: tuple[tuple[int, int], ...] | UnsetType = UNSET
    request_send_end_ns: int | UnsetType = UNSET
    request_chunks_count: int | UnsetType = UNSET
    request_bytes_total: int | UnsetType = UNSET
    sending_ns: int | UnsetType = UNSET
    connection_reused_ns: int | UnsetType = UNSET
    connecting_ns: int | UnsetType = UNSET
    response_status_code: int | UnsetType = UNSET
    response_headers_received_ns: int | UnsetType = UNSET
    response_receive_start_ns: int | UnsetType = UNSET
    response_chunks: tuple[tuple[int, int], ...] | UnsetType = UNSET
    response_chunks_count: int | UnsetType = UNSET
    response_bytes_total: int | UnsetType = UNSET
    response_receive_end_ns: int | UnsetType = UNSET
    waiting_ns: int | UnsetType = UNSET
    receiving_ns: int | UnsetType = UNSET
    duration_ns: int | UnsetType = UNSET
    error_timestamp_ns: int | UnsetType = UNSET


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of profile_export.jsonl. `metrics` contains the request's defined metrics by tag."""

    metadata: LineMetadata
    metrics: dict[str, LineMetric]
    trace_data: TraceData | UnsetType = UNSET
    error: LineError | UnsetType = UNSET


class InputSession(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the dataset: the body of each of its turns, without the history."""

    session_id: str
    payloads: tuple[Any, ...]


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The file inputs.json."""

    data: tuple[InputSession, ...]
