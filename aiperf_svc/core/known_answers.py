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
from numpy.typing import NDArray

from aiperf_svc.core.answer_reader import AnswerFormat, AnswerReader
from aiperf_svc.core.read_times import ReadTimes
from aiperf_svc.core.request_metrics import answer_columns
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import READ_DTYPE, Rows

Ints = NDArray[np.int64]

MAX_ANSWER: Final = 4_096
"""Bytes of an answer that is worth remembering; longer ones hardly come in one read."""
MAX_KNOWN: Final = 1_024
"""About 2 MB. Answers that state the time at which they were made do not come again after it."""
LEARNED_PER_BATCH: Final = 16
"""Where answers do not repeat, looking for them must cost little."""

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
_find_id = re.compile(_ID).search
_is_id = re.compile(_ID).fullmatch


class KnownAnswer:
    """What an answer says that came whole, in one read, and without any error."""

    __slots__ = ("columns", "id_bytes", "parts", "reader")

    def __init__(self, reader: AnswerReader, id_bytes: int, parts: list[bytes]) -> None:
        """`reader` has read it on the clock of this module; `parts` are what is left of the answer
        without the members of its id, each of `id_bytes`."""
        self.reader = reader
        self.id_bytes = id_bytes
        self.parts = parts
        self.columns = answer_columns(reader)


def on_the_wall_clock(rows: Rows, *, polled_wall_ns: Ints, stamp_wall_ns: Ints, lag: Ints) -> Rows:
    """METRIC_DTYPE rows of known answers, with the times at which these came and not at which they
    were learned; the arrays have an item for each row."""
    latest = np.maximum(rows["start_wall_ns"], polled_wall_ns)
    uncertainty = np.maximum(stamp_wall_ns - latest, 0)
    for name in _TIMES:
        rows[name] = (rows[name] > 0) * stamp_wall_ns
    for name in _UNCERTAINTIES:
        rows[name] = (rows[name] > 0) * uncertainty
    rows["receive_lag_ns"] = np.maximum(lag, 0)
    return rows


class KnownAnswers:
    """Those of a run."""

    def __init__(self, format: AnswerFormat) -> None:
        self._format = format
        self._known: dict[tuple[Any, ...], KnownAnswer] = {}
        self._latest: dict[int, KnownAnswer] = {}
        """By length: where all answers are alike, looking at the latest is all that is needed."""
        self._may_learn = LEARNED_PER_BATCH

    def next_batch(self) -> None:
        """Some further answers may be learned."""
        self._may_learn = LEARNED_PER_BATCH

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
        reader.take(answer, body_offset, len(answer), ReadTimes(reads, [len(answer)]), 0, 1)
        reader.finish(_COMPLETED, 0, "", 0)
        reader.bytes_in = len(answer)
        return None if reader.error else reader
