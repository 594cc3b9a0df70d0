"""Events that have been met before: the innermost steps of a record processor.

Nearly all events of a stream are one more token in a frame and with a beginning that do not change,
so what one says is looked up and when it came is read off a list. Both are also in C
(`_known_events.c`), which is used where it has been compiled. It stops at the first event that is
anything else, and `answer_events` and `answer_reader` go on: what an event means is decided there.
"""

from array import array
from collections.abc import Mapping

from aiperf_svc.core.endpoints.base import Delta

try:
    from aiperf_svc.core import _known_events as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there

DecodedEvent = tuple[Delta, int]
"""What an event says; its end, exclusive, within the bytes that were fed. `[DONE]` is a finish
reason."""


def interpreted_take_known(
    data: bytes,
    at: int,
    stop: int,
    common: bytes,
    known: Mapping[bytes, Delta],
    found: list[DecodedEvent],
) -> int:
    """Add to `found` the events of the leading chunks of `data[at:stop]` that are a size, `common`,
    something that is `known`, and the end of an event and of a chunk; the offset after them.

    None is a right answer: the caller takes those as well.
    """
    return at


def interpreted_take_plain(
    events: list[DecodedEvent],
    place: int,
    ends: list[int],
    stamps: list[int],
    read: int,
    last_end: int,
    times: "array[int]",
) -> tuple[int, int, int]:
    """Add to `times` the stamps of the plain events from `place` on, up to the first that is not.

    `ends` and `stamps` are of all reads, `read` is the one reached, `last_end` the end of the event
    before. The place, the read and the event's end that are then reached.
    """
    while place < len(events):
        delta, end = events[place]
        if not delta.is_plain:
            break
        while ends[read] < end:
            read += 1
        times.append(stamps[read])
        last_end = end
        place += 1
    return place, read, last_end


if compiled is None:
    take_known, take_plain = interpreted_take_known, interpreted_take_plain
else:
    take_known, take_plain = compiled.take_known, compiled.take_plain
