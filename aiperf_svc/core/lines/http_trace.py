"""The `trace_data` of a line of profile_export.jsonl, in AIPerf's format (0.13): when the request
was written, and when each read of its response arrived.

Times of reads are the kernel's stamps. Fields without values in this client are omitted: DNS
queries, waits for a connection pool, headers.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.protocol.records import Flag, Rows

Chunks = NDArray[np.int64]
"""Kernel stamp (wall clock, ns) and length in bytes of each read with bytes of the body, shape
(n, 2)."""
TRACE_TYPE: Final = "aiohttp"
"""The only type for which AIPerf's models contain connection times."""


def trace_data(rows: Rows, place: int, chunks: Chunks) -> bytes:
    """Return the object for one METRIC_DTYPE row and the chunks of its response, as JSON."""
    row = {name: int(rows[name][place]) for name in _COLUMNS}
    connecting_ns = row["connect_ns"] + row["tls_ns"]
    start, sent, end = row["start_wall_ns"], row["sent_wall_ns"], row["end_wall_ns"]
    write = start + connecting_ns if start else 0
    found: dict[str, object] = {"trace_type": TRACE_TYPE}
    if write:
        found |= {"request_send_start_ns": write}
    if sent:
        found |= {
            "request_chunks": [(sent, row["bytes_out"])],
            "request_send_end_ns": sent,
            "request_chunks_count": 1,
            "request_bytes_total": row["bytes_out"],
            "sending_ns": sent - write,
        }
    if start and row["flags"] & Flag.REUSED:
        found["connection_reused_ns"] = start
    elif start:
        found["connecting_ns"] = connecting_ns
    if row["status"]:
        found["response_status_code"] = row["status"]
    if row["ack_wall_ns"]:
        found["response_headers_received_ns"] = row["ack_wall_ns"]
    if len(chunks):
        first, last = int(chunks[0, 0]), int(chunks[-1, 0])
        found |= {
            "response_receive_start_ns": first,
            "response_chunks": chunks.tolist(),
            "response_chunks_count": len(chunks),
            "response_bytes_total": int(np.sum(chunks[:, 1])),
            "response_receive_end_ns": last,
            "waiting_ns": first - sent,
            "receiving_ns": last - first,
            "duration_ns": last - write,
        }
    if row["error"]:
        found["error_timestamp_ns"] = end
    return msgspec.json.encode(found)


_COLUMNS: Final = (
    "start_wall_ns",
    "sent_wall_ns",
    "ack_wall_ns",
    "end_wall_ns",
    "connect_ns",
    "tls_ns",
    "bytes_out",
    "status",
    "flags",
    "error",
)
