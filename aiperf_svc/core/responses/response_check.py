"""Checks whether a complete response with a success status is an error: a cut stream, an error
object, no content, a finish reason such as `abort`.

The record processor decides this for the results. The history of a conversation must not contain
such a response either, so a worker asks the same `ResponseReader` before the next turn. Nearly all
streams are good: they have content at their beginning, a finish reason at their end, and no error
object. These are not parsed again, to keep the time between two turns short.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from aiperf_svc.core.endpoints.base import DONE, UNREADABLE, Delta
from aiperf_svc.core.responses.read_times import ReadTimes
from aiperf_svc.core.responses.reader import ResponseReader
from aiperf_svc.core.responses.response_format import STREAM, ResponseFormat
from aiperf_svc.domain.finish_reasons import FAILURES, FinishReason, finish_reason_of
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import READ_DTYPE

_EDGE_BYTES: Final = 4_096
"""Bytes at the beginning and the end of a stream that are searched for its first content and its
finish reason."""
_ERROR: Final = re.compile(rb'error(?!"\s*:\s*null)')
"""Matches errors: a member, a type or a field of an event. A match in a text only costs a parse."""
_DETAIL: Final = b'"detail"'
"""Matches errors without it. Two searches are faster than one for both."""
_BAD_ENDINGS: Final = FAILURES | {FinishReason.NONE}


def error_of(raw: bytes, *, body_offset: int, framing: int, format: ResponseFormat) -> str:
    """Return the error message of a complete response; empty if it is good.

    Raises ProtocolViolation if its head cannot be read.
    """
    heads, body = raw[:body_offset], raw[body_offset:]
    head, mode = format.take_heads(heads)
    if mode == STREAM and not format.last_choice and _is_good_stream(body, format):
        return ""
    reads = np.zeros(1, dtype=READ_DTYPE)
    reads["stamp_wall_ns"], reads["length"] = 1, len(raw)
    times = ReadTimes(reads, np.array([len(raw)], dtype=np.int64))
    reader = ResponseReader(format, 0)
    reader.take_head(heads, framing)
    reader.take(raw, body_offset, len(raw), times, 0, 1)
    reader.finish(Outcome.COMPLETED, 0, "", head.status)
    return reader.message or "an error" if reader.outcome == Outcome.ERRORED else ""


def _is_good_stream(body: bytes, format: ResponseFormat) -> bool:
    """Return whether a stream is certainly good."""
    if _ERROR.search(body) or _DETAIL in body:
        return False
    first, last = (part.split(b"data:")[1:] for part in (body[:_EDGE_BYTES], body[-_EDGE_BYTES:]))
    with suppress(*UNREADABLE):
        words = (delta.finish_reason for delta in _deltas(reversed(last), format))
        end = finish_reason_of(next(filter(None, words), ""))
        return end not in _BAD_ENDINGS and any(each.has_output for each in _deltas(first, format))
    return False


def _deltas(events: Iterable[bytes], format: ResponseFormat) -> Iterator[Delta]:
    for event in events:
        data = event.partition(b"\n")[0].strip()
        if not data.startswith(DONE):
            yield format.memo.parse(data)
