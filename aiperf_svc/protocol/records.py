"""The two packed row formats of the data path.

Raw records go from worker to record processor, metric rows from record processor to records
manager. They are the only messages whose volume grows with the load, so their fixed fields are
rows of a packed little-endian layout. The sender appends with one `struct.pack`; the receiver sees
all rows of a message as one numpy array without touching them one by one.

All times are CLOCK_REALTIME nanoseconds of the worker's own machine (`_wall_ns`), 0 where there is
none.
"""

import struct
from enum import IntFlag
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

UNKNOWN_TOKENS: Final = -1
"""A number of tokens that was not reported, in both formats."""
UNCOUNTED_TOKENS: Final = -2
"""A number of tokens that were received but not counted."""

CONTRADICTORY_TOKENS: Final = -2
"""Replaces the count of cached tokens if a response states the prompt's counts twice, with
different values."""


class Flag(IntFlag):
    """Bits of the field `flags` in both formats."""

    FINAL = 1
    """This fragment ends its request."""
    REUSED = 2
    """The request was sent on a connection that had carried a request before."""
    RETRIED = 4
    """The reused connection was closed before any byte of the response, and the request was sent
    again on a new one."""
    LAST_TURN = 8
    """The request ends its conversation, by success or failure."""
    UNSTAMPED = 16
    """At least one read had no kernel timestamp; the event loop's time is used instead."""
    CLOCK_JUMP = 32
    """Wall and monotonic clock drifted apart by over 1 ms while the request was in flight."""
    STREAMED = 64
    """The request asked for a stream."""
    CAPPED = 128
    """The request had to wait for the concurrency cap, a prefill slot or the connection limit."""
    ABANDONS = 256
    """The client abandons the request a set time after sending it, unless the response has ended by
    then."""
    BLOCKED = 512
    """The turn was due by the user's clock before the previous response had ended."""


_FRAGMENT_FIELDS: list[tuple[str, str, str]] = [
    # name, struct code, numpy type
    ("request_id", "Q", "<u8"),  # counter of the worker; ties fragments together
    ("seq", "Q", "<u8"),  # 1, 2, … in order of ending; 0 unless FINAL
    ("index", "Q", "<u8"),  # of the credit
    ("due_wall_ns", "q", "<i8"),
    ("write_wall_ns", "q", "<i8"),  # just before the first byte is written
    ("sent_wall_ns", "q", "<i8"),  # just after the last byte was written
    ("ack_wall_ns", "q", "<i8"),  # stamp of the read that ends the response's headers
    ("end_wall_ns", "q", "<i8"),  # stamp of the read that holds the last byte
    ("connect_ns", "q", "<i8"),  # waited for TCP connect, 0 when reused or made ahead
    ("tls_ns", "q", "<i8"),  # waited for the TLS handshake, 0 when none
    ("bytes_out", "I", "<u4"),
    ("body_offset", "I", "<u4"),  # part 0: length of status line and headers in `bodies`
    ("reads", "I", "<u4"),  # rows of `reads` that belong to this fragment
    ("body", "I", "<u4"),  # bytes of `bodies` that belong to this fragment
    ("message", "I", "<u4"),  # bytes of error text in `bodies`, after the body's
    ("entry", "I", "<u4"),  # dataset entry
    ("input_tokens", "i", "<i4"),  # of the dataset, -1 unknown
    ("part", "H", "<u2"),  # 0, 1, … within the request
    ("turn", "H", "<u2"),
    ("status", "H", "<u2"),  # HTTP status, 0 when there was none
    ("flags", "H", "<u2"),
    ("phase", "B", "u1"),
    ("outcome", "B", "u1"),
    ("error", "B", "u1"),  # ErrorKind
    ("framing", "B", "u1"),  # Framing of the body
    ("requested_tokens", "i", "<i4"),  # output tokens that the request asks for, -1 none
]

FRAGMENT = struct.Struct("<" + "".join(code for _, code, _ in _FRAGMENT_FIELDS))
"""One fragment's fixed fields; `FRAGMENT.pack(*fields)` in the order of FRAGMENT_DTYPE.names."""
FRAGMENT_DTYPE = np.dtype([(name, kind) for name, _, kind in _FRAGMENT_FIELDS])

READ = struct.Struct("<qqqI")
"""One read: kernel stamp, time of the previous poll, time at which our code got it, length."""
READ_DTYPE = np.dtype(
    [
        ("stamp_wall_ns", "<i8"),
        ("polled_wall_ns", "<i8"),
        ("read_wall_ns", "<i8"),
        ("length", "<u4"),
    ]
)

METRIC_DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("index", "<u8"),
        ("due_wall_ns", "<i8"),
        ("start_wall_ns", "<i8"),  # when the request took its connection, or began to open it
        ("sent_wall_ns", "<i8"),
        ("ack_wall_ns", "<i8"),
        ("first_token_wall_ns", "<i8"),  # first content or reasoning delta
        ("first_output_wall_ns", "<i8"),  # first content delta that is not reasoning
        ("second_token_wall_ns", "<i8"),
        ("last_token_wall_ns", "<i8"),  # last content or reasoning delta
        ("end_wall_ns", "<i8"),
        ("connect_ns", "<i8"),
        ("tls_ns", "<i8"),
        ("receive_lag_ns", "<i8"),  # largest over the request's reads
        ("ttft_uncertainty_ns", "<i8"),
        ("last_uncertainty_ns", "<i8"),
        ("bytes_out", "<u4"),
        ("bytes_in", "<u4"),
        ("entry", "<u4"),
        ("chunks", "<u4"),  # events with a token
        ("reads", "<u4"),
        ("input_tokens", "<i4"),  # -1 unknown, here and below
        ("output_tokens", "<i4"),
        ("reasoning_tokens", "<i4"),  # -2 if there are some and their number is unknown
        ("usage_prompt_tokens", "<i4"),
        ("usage_completion_tokens", "<i4"),
        ("hidden_tokens", "<i4"),  # reasoning tokens that were stated and not sent, 0 if none
        ("text_bytes", "<u4"),  # size of the output, reasoning included
        ("blank_tokens", "<u4"),  # `chunks` with an empty text, which the usage counts as tokens
        # From the first delta with an empty text to the first token, if it may have been a token.
        ("blank_lead_us", "<u4"),
        ("worker", "<u2"),  # rank in the roster
        ("turn", "<u2"),
        ("status", "<u2"),
        ("flags", "<u2"),
        ("phase", "u1"),
        ("outcome", "u1"),
        ("error", "u1"),
        ("finish_reason", "u1"),  # FinishReason
        ("requested_tokens", "<i4"),  # output tokens that the request asks for
        ("cached_tokens", "<i4"),  # prompt tokens from a cache; -2 contradictory
        ("cache_write_tokens", "<i4"),
        ("spec_steps", "<i4"),  # steps of speculation
        ("spec_drafted_tokens", "<i4"),
        ("spec_accepted_tokens", "<i8"),  # as long as the two above together, for the alignment
        # Number of the URL, among several; as long as the others, which keeps rows aligned.
        ("target", "<u8"),
    ]
)
"""One finished request: times and counts only. Every other metric is derived from these columns."""
RARE: Final = dict.fromkeys(
    (
        *("cached_tokens", "cache_write_tokens"),
        *("spec_steps", "spec_drafted_tokens", "spec_accepted_tokens"),
    ),
    UNKNOWN_TOKENS,
)
"""Columns that have one value in all rows of most runs, and that value. Such a column takes no
memory, and files of earlier versions have none."""


def usual_column(name: str, count: int) -> NDArray[Any]:
    """Return a column of `RARE` with its usual value in all rows. It takes no memory for them."""
    return np.broadcast_to(np.array(RARE[name], dtype=METRIC_DTYPE[name]), count)


Rows = NDArray[Any]
"""A structured array of one of the dtypes above, shape (n,)."""


class Framing:
    """Values of a fragment's `framing`: how the end of the response body is found."""

    LENGTH = 0
    CHUNKED = 1
    UNTIL_CLOSE = 2
