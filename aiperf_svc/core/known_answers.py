"""Whole short answers repeat: but for the request's id, many are equal to the byte, head included.

Answers of a few tokens come in one read, and at their rate reading each one costs a record
processor more than all the rest. Two answers that differ only in the value of `{"id":"…"` say the
same, because no endpoint asks for an id and its length does not move what follows from one read to
another. So such an answer is read once, on a clock of its own on which it was sent at 1 and came
at 2; what was 2 there is the read's stamp of every later one.
"""

import re
from typing import Any, Final

import numpy as np

from aiperf_svc.core.answer_reader import AnswerFormat, AnswerReader
from aiperf_svc.core.read_times import ReadTimes
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import READ_DTYPE

MAX_ANSWER: Final = 4_096
"""Bytes of an answer that is worth remembering; longer ones hardly come in one read."""
MAX_KNOWN: Final = 1_024
"""About 2 MB. Answers that state the time at which they were made do not come again after it."""
LEARNED_PER_BATCH: Final = 16
"""Where answers do not repeat, looking for them must cost little."""

_COMPLETED: Final = int(Outcome.COMPLETED)
_SENT, _CAME = 1, 2
_find_id = re.compile(rb'\{"id":"[0-9A-Za-z_-]{1,64}"').search


class KnownAnswer:
    """What an answer says that came whole, in one read, and without any error."""

    __slots__ = (
        "_chunks",
        "_has_output",
        "_has_token",
        "_is_first_bounded",
        "_is_last_bounded",
        "_read",
    )

    def __init__(self, read: AnswerReader) -> None:
        """`read` has read it on the clock of this module."""
        self._read = read
        self._chunks = len(read.times_wall_ns)
        self._has_output = read.first_output_wall_ns > 0
        self._has_token = read.last_token_wall_ns > 0
        self._is_first_bounded = read.ttft_uncertainty_ns > 0
        self._is_last_bounded = read.last_uncertainty_ns > 0

    def came(self, start_wall_ns: int, polled_wall_ns: int, stamp_wall_ns: int) -> AnswerReader:
        """As if it had been read now."""
        read = self._read
        reader = read.repeated()
        reader.times_wall_ns.extend([stamp_wall_ns] * self._chunks)
        if self._has_output:
            reader.first_output_wall_ns = stamp_wall_ns
        if self._has_token:
            reader.last_token_wall_ns = stamp_wall_ns
        if self._is_last_bounded or self._is_first_bounded:
            latest = start_wall_ns if start_wall_ns > polled_wall_ns else polled_wall_ns
            uncertainty_ns = stamp_wall_ns - latest if stamp_wall_ns > latest else 0
            if self._is_first_bounded:
                reader.ttft_uncertainty_ns = uncertainty_ns
            if self._is_last_bounded:
                reader.last_uncertainty_ns = uncertainty_ns
        return reader


class KnownAnswers:
    """Those of a run."""

    def __init__(self, format: AnswerFormat) -> None:
        self._format = format
        self._known: dict[tuple[Any, ...], KnownAnswer] = {}
        self._may_learn = LEARNED_PER_BATCH

    def next_batch(self) -> None:
        """Some further answers may be learned."""
        self._may_learn = LEARNED_PER_BATCH

    def find(self, answer: bytes, *, body_offset: int, framing: int) -> KnownAnswer | None:
        """What is known of a whole answer, its head and framing included; None for one that must
        be read by itself."""
        found = _find_id(answer, body_offset)
        if found is None:
            return None
        id_member = found[0]
        # Joined by the id's member again, the parts are the answer: nothing else is left out.
        key = (len(id_member), *answer.split(id_member))
        known = self._known.get(key)
        if known is None and self._may_learn:
            self._may_learn -= 1
            known = self._learn(answer, body_offset, framing)
            if known is not None:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[key] = known
        return known

    def _learn(self, answer: bytes, body_offset: int, framing: int) -> KnownAnswer | None:
        reader = AnswerReader(self._format, _SENT)
        reader.take_head(answer[:body_offset], framing)
        reads = np.array([(_CAME, 0, _CAME, len(answer))], dtype=READ_DTYPE)
        reader.take(answer, body_offset, len(answer), ReadTimes(reads, [len(answer)]), 0, 1)
        reader.finish(_COMPLETED, 0, "", 0)
        return None if reader.error else KnownAnswer(reader)
