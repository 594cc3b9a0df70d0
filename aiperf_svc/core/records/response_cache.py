"""Whole short answers repeat: but for the request's id, many are equal to the byte, head included.

Answers of a few tokens come in one read, and at their rate reading each one costs a record
processor more than all the rest. Two answers that differ only in the value of `{"id":"…"` say the
same, because no endpoint asks for an id and its length does not move what follows from one read to
another. So such an answer is read once, on a clock of its own on which it was sent at 1 and came
at 2; what was 2 there is the read's stamp of every later one.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.records.rows import answer_columns, put_answer
from aiperf_svc.core.responses.read_times import ReadTimes
from aiperf_svc.core.responses.reader import AnswerFormat, AnswerReader
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import READ_DTYPE, Flag, Rows

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

MAX_ANSWER: Final = 4_096
"""Bytes of an answer that is worth remembering; longer ones hardly come in one read."""
MAX_KNOWN: Final = 1_024
"""About 2 MB. Answers that state the time at which they were made do not come again after it."""
LEARNED_PER_BATCH: Final = 16
"""Where answers do not repeat, looking for them must cost little."""

MANY: Final = 8
"""Answers of one length from which on to compare all at once costs less than one by one."""

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
"""By code: 0 for a character that an id may have, 1 for any other."""


class KnownAnswer:
    """What an answer says that came whole, in one read, and without any error."""

    __slots__ = ("_bytes", "_ids", "columns", "id_bytes", "parts", "reader")

    def __init__(self, reader: AnswerReader, id_bytes: int, parts: list[bytes]) -> None:
        """`reader` has read it on the clock of this module; `parts` are what is left of the answer
        without the members of its id, each of `id_bytes`."""
        self.reader = reader
        self.id_bytes = id_bytes
        self.parts = parts
        self.columns = answer_columns(1)
        put_answer(self.columns, 0, reader)
        value = bytes(id_bytes - len(_ID_BEGIN) - len(_ID_END))
        self._bytes = np.frombuffer((_ID_BEGIN + value + _ID_END).join(parts), dtype=np.uint8)
        """With zeros for the id's values."""
        ends = np.cumsum([len(part) + id_bytes for part in parts[:-1]]) - len(_ID_END)
        self._ids = [slice(end - len(value), end) for end in ends.tolist()]

    def are(self, answers: Bytes) -> Mask:
        """Which of some answers of its length, shape (answers, bytes), are this one but for their
        id; overwrites them."""
        first, *others = self._ids
        ids = answers[:, first].copy()
        for place in others:
            answers[:, place] -= ids
        outside = np.frombuffer(ids.tobytes().translate(_OUTSIDE_OF_ID), dtype=np.uint8)
        answers[:, first] = outside.reshape(ids.shape)
        are: Mask = (answers == self._bytes).all(axis=1)
        return are


def put_on_the_wall_clock(rows: Rows, reads: Rows) -> None:
    """Give METRIC_DTYPE rows of known answers the times at which these came, and not at which they
    were learned. `reads` are READ_DTYPE rows, the one read of each."""
    stamp_wall_ns = reads["stamp_wall_ns"]
    latest = np.maximum(rows["start_wall_ns"], reads["polled_wall_ns"])
    uncertainty = np.maximum(stamp_wall_ns - latest, 0)
    for name in _TIMES:
        rows[name] = (rows[name] > 0) * stamp_wall_ns
    for name in _UNCERTAINTIES:
        rows[name] = (rows[name] > 0) * uncertainty
    rows["receive_lag_ns"] = np.maximum(reads["read_wall_ns"] - stamp_wall_ns, 0)


class KnownAnswers:
    """Those of a run."""

    def __init__(self, format: AnswerFormat) -> None:
        self._format = format
        self._known: dict[tuple[Any, ...], KnownAnswer] = {}
        self._latest: dict[int, KnownAnswer] = {}
        """By length: where all answers are alike, looking at the latest is all that is needed."""
        self._may_learn = LEARNED_PER_BATCH

    def find_all(
        self, bodies: bytes, fragments: Rows, begins: Ints
    ) -> Iterator[tuple[Ints, KnownAnswer]]:
        """The known ones in a batch: the places of some of its fragments, and what is known of all
        of those. `begins` are the offsets of all fragments in the `bodies`."""
        self._may_learn = LEARNED_PER_BATCH
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

    def find(self, answer: bytes, *, body_offset: int, framing: int) -> KnownAnswer | None:
        """What is known of a whole answer, its head and framing included; None for one that must
        be read by itself."""
        latest = self._latest.get(len(answer))
        if latest is not None:
            at = len(latest.parts[0])
            id_member = answer[at : at + latest.id_bytes]
            if id_member.join(latest.parts) == answer and _is_id(id_member):
                return latest
        found = _find_id(answer, body_offset)
        if found is None:
            return None
        id_member = found[0]
        # Joined by the id's member again, the parts are the answer: nothing else is left out.
        parts = answer.split(id_member)
        key = (len(id_member), *parts)
        known = self._known.get(key)
        if known is None and self._may_learn:
            self._may_learn -= 1
            reader = self._learn(answer, body_offset, framing)
            if reader is not None:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                    self._latest.clear()
                known = self._known[key] = KnownAnswer(reader, len(id_member), parts)
        if known is not None:
            self._latest[len(answer)] = known
        return known

    def _learn(self, answer: bytes, body_offset: int, framing: int) -> AnswerReader | None:
        reader = AnswerReader(self._format, _SENT)
        reader.take_head(answer[:body_offset], framing)
        reads = np.array([(_CAME, 0, _CAME, len(answer))], dtype=READ_DTYPE)
        reader.take(
            answer, body_offset, len(answer), ReadTimes(reads, np.array([len(answer)])), 0, 1
        )
        reader.finish(_COMPLETED, 0, "", 0)
        reader.bytes_in = len(answer)
        return None if reader.error else reader


def _are_whole(fragments: Rows) -> Mask:
    """Which hold a whole answer, in one read, that ended well and is not too long."""
    are: Mask = (
        (fragments["reads"] == 1)
        & (fragments["part"] == 0)
        & ((fragments["flags"] & _FINAL) != 0)
        & (fragments["outcome"] == _COMPLETED)
        & (fragments["body"] <= MAX_ANSWER)
    )
    return are


def _slices(data: bytes, begins: Ints, size: int) -> Bytes:
    """`size` bytes from each offset on, copied; shape (offsets, size)."""
    # At every offset begins an item; picked out, each is copied as one.
    items: NDArray[Any] = np.ndarray(len(data) - size + 1, np.dtype((np.void, size)), data, 0, (1,))
    return items[begins].view(np.uint8).reshape(-1, size)
