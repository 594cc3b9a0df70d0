"""A cache of complete short responses: many are equal byte for byte except for the request's id.

A response of a few tokens arrives in one read, and at their rate, parsing each one costs a record
processor more than all other work. Two responses that differ only in the value of `{"id":"…"` have
the same content, since no endpoint uses the id, and its length does not move other bytes to another
read. So such a response is parsed once, with artificial times: sent at 1, received at 2. For every
later one, time 2 is replaced by the timestamp of its read.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.records.rows import put_response, response_columns
from aiperf_svc.core.responses.read_times import ReadTimes
from aiperf_svc.core.responses.reader import ResponseReader
from aiperf_svc.core.responses.response_format import ResponseFormat
from aiperf_svc.domain.metric_formulas import write_wall_ns
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import READ_DTYPE, Flag, Rows

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

MAX_RESPONSE: Final = 4_096
"""Maximum size of a cached response in bytes; longer ones rarely arrive in one read."""
MAX_KNOWN: Final = 1_024
"""Maximum number of cached responses, about 2 MB. Responses that contain their creation time never
repeat."""
CACHED_PER_BATCH: Final = 16
"""Maximum responses added per batch, so the cache is cheap if responses do not repeat."""

MANY: Final = 8
"""Minimum number of responses of one length for which comparing all at once is faster than one by
one."""

_FINAL: Final = int(Flag.FINAL)
_COMPLETED: Final = int(Outcome.COMPLETED)
_SENT, _CAME = 1, 2
_TIMES: Final = (
    "first_token_wall_ns",
    "second_token_wall_ns",
    "first_output_wall_ns",
    "last_token_wall_ns",
)
_UNCERTAINTIES: Final = ("ttft_uncertainty_ns", "last_uncertainty_ns")
_ID: Final = rb'\{"id":"[0-9A-Za-z_-]{1,64}"'
_ID_BEGIN: Final = b'{"id":"'
_ID_END: Final = b'"'
_find_id = re.compile(_ID).search
_is_id = re.compile(_ID).fullmatch
_OUTSIDE_OF_ID: Final = bytes(
    re.fullmatch("[0-9A-Za-z_-]", chr(code)) is None for code in range(256)
)
"""Table by character code: 0 for a character that an id may contain, 1 for others."""


class CachedResponse:
    """Content of a complete response that arrived in one read without errors."""

    __slots__ = ("_bytes", "_ids", "columns", "id_bytes", "parts", "reader")

    def __init__(self, reader: ResponseReader, id_bytes: int, parts: list[bytes]) -> None:
        """Cache a response. `reader` has parsed it with the artificial times; `parts` are the
        response without its id members, each of `id_bytes`."""
        self.reader = reader
        self.id_bytes = id_bytes
        self.parts = parts
        self.columns = response_columns(1)
        put_response(self.columns, 0, reader)
        value = bytes(id_bytes - len(_ID_BEGIN) - len(_ID_END))
        self._bytes = np.frombuffer((_ID_BEGIN + value + _ID_END).join(parts), dtype=np.uint8)
        """Response with zeros instead of the id's values."""
        ends = np.cumsum([len(part) + id_bytes for part in parts[:-1]]) - len(_ID_END)
        self._ids = [slice(end - len(value), end) for end in ends.tolist()]

    def are(self, responses: Bytes) -> Mask:
        """Return which responses of the same length, shape (responses, bytes), equal this one
        except for their id. Overwrites them."""
        first, *others = self._ids
        ids = responses[:, first].copy()
        for place in others:
            responses[:, place] -= ids
        outside = np.frombuffer(ids.tobytes().translate(_OUTSIDE_OF_ID), dtype=np.uint8)
        responses[:, first] = outside.reshape(ids.shape)
        are: Mask = (responses == self._bytes).all(axis=1)
        return are


def put_on_the_wall_clock(rows: Rows, reads: Rows) -> None:
    """Replace the artificial times in METRIC_DTYPE rows of cached responses by the real ones.
    `reads` are READ_DTYPE rows, the only read of each response."""
    stamp_wall_ns = reads["stamp_wall_ns"]
    columns = {name: rows[name] for name in ("start_wall_ns", "connect_ns", "tls_ns")}
    latest = np.maximum(write_wall_ns(columns), reads["polled_wall_ns"])
    uncertainty = np.maximum(stamp_wall_ns - latest, 0)
    for name in _TIMES:
        rows[name] = (rows[name] > 0) * stamp_wall_ns
    for name in _UNCERTAINTIES:
        rows[name] = (rows[name] > 0) * uncertainty
    rows["receive_lag_ns"] = np.maximum(reads["read_wall_ns"] - stamp_wall_ns, 0)


class ResponseCache:
    """The cached responses of a run."""

    def __init__(self, format: ResponseFormat) -> None:
        self._format = format
        self._known: dict[tuple[Any, ...], CachedResponse] = {}
        self._latest: dict[int, CachedResponse] = {}
        """Latest cached response by length. If all responses are alike, no other one is
        compared."""
        self._may_cache = CACHED_PER_BATCH

    def find_all(
        self, bodies: bytes, fragments: Rows, begins: Ints
    ) -> Iterator[tuple[Ints, CachedResponse]]:
        """Find the cached responses in a batch. Yields indexes of fragments and the cached response
        that all of these equal. `begins` are the offsets of all fragments in
        `bodies`."""
        self._may_cache = CACHED_PER_BATCH
        places = np.flatnonzero(_are_whole(fragments))
        if not len(places):
            return
        sizes = fragments["body"][places]
        for size in np.unique(sizes).tolist():
            left = places[sizes == size]
            are_many_alike = True
            while len(left):
                first = fragments[left[0]]
                begin = int(begins[left[0]])
                known = self.find(
                    bodies[begin : begin + size],
                    body_offset=int(first["body_offset"]),
                    framing=int(first["framing"]),
                )
                if known is None or not are_many_alike or len(left) < MANY:
                    same, left = left[:1], left[1:]
                else:
                    is_same = known.are(_slices(bodies, begins[left], size))
                    same, left = left[is_same], left[~is_same]
                    are_many_alike = len(same) >= MANY
                if known is not None:
                    yield same, known

    def find(self, response: bytes, *, body_offset: int, framing: int) -> CachedResponse | None:
        """Return the cached content of a response with its head and framing; None if it must be
        parsed."""
        latest = self._latest.get(len(response))
        if latest is not None:
            at = len(latest.parts[0])
            id_member = response[at : at + latest.id_bytes]
            if id_member.join(latest.parts) == response and _is_id(id_member):
                return latest
        found = _find_id(response, body_offset)
        if found is None:
            return None
        id_member = found[0]
        # The parts joined by the id member are the whole response.
        parts = response.split(id_member)
        key = (len(id_member), *parts)
        known = self._known.get(key)
        if known is None and self._may_cache:
            self._may_cache -= 1
            reader = self._parse_and_cache(response, body_offset, framing)
            if reader is not None:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                    self._latest.clear()
                known = self._known[key] = CachedResponse(reader, len(id_member), parts)
        if known is not None:
            self._latest[len(response)] = known
        return known

    def _parse_and_cache(
        self, response: bytes, body_offset: int, framing: int
    ) -> ResponseReader | None:
        reader = ResponseReader(self._format, _SENT)
        reader.take_head(response[:body_offset], framing)
        reads = np.array([(_CAME, 0, _CAME, len(response))], dtype=READ_DTYPE)
        reader.take(
            response, body_offset, len(response), ReadTimes(reads, np.array([len(response)])), 0, 1
        )
        reader.finish(_COMPLETED, 0, "", 0)
        reader.bytes_in = len(response)
        return None if reader.error else reader


def _are_whole(fragments: Rows) -> Mask:
    """Return which fragments contain a complete, successful response in one read that is not too
    long."""
    are: Mask = (
        (fragments["reads"] == 1)
        & (fragments["part"] == 0)
        & ((fragments["flags"] & _FINAL) != 0)
        & (fragments["outcome"] == _COMPLETED)
        & (fragments["body"] <= MAX_RESPONSE)
    )
    return are


def _slices(data: bytes, begins: Ints, size: int) -> Bytes:
    """Return `size` bytes from each offset, copied; shape (offsets, size)."""
    # A view with one item at every offset, so that each slice is copied as one item.
    items: NDArray[Any] = np.ndarray(len(data) - size + 1, np.dtype((np.void, size)), data, 0, (1,))
    return items[begins].view(np.uint8).reshape(-1, size)
