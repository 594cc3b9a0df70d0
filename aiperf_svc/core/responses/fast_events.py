"""Events that have been met before: the innermost step of a record processor.

Nearly all events of a stream are one more token in a frame and with a beginning that do not change,
so what one says is looked up, and all that it adds to a record is when it came. That is also in C
(`_fast_events.c`), which is used where it has been compiled. Both stop at the first event that is
anything else, and `events` and `reader` go on: what an event means is decided there.
"""

from array import array
from collections.abc import Mapping
from typing import Final

try:
    from aiperf_svc.core.responses import _fast_events as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there

END: Final = b"\n\n\r\n"
"""Of an event and of the chunk around it."""
AFTER_EVENT: Final = len(b"\r\n")
"""Bytes of it that are the chunk's."""
LONGEST_GAP_NS: Final = 2**32 - 1


def interpreted_take_plain(
    data: bytes,
    at: int,
    stop: int,
    between: bytes,
    known: Mapping[bytes, str],
    ends: memoryview,
    stamps: memoryview,
    read: int,
    last_wall_ns: int,
    texts: list[str] | None,
) -> tuple[int, int, bytes]:
    """The leading chunks of `data[at:stop]` that are a size, `between`, something that is `known`,
    and `END`: the offset after them, the read that holds the last, and the gaps from each event to
    the one before it, which for the first came at `last_wall_ns`. An event whose gap is negative or
    over `LONGEST_GAP_NS` is not taken.

    `between` begins with the end of a size's line. `ends` and `stamps` are of all reads, int64;
    `read` is one that ends no later than the first such event. Gaps are uint32, in the machine's
    order. What is known of each event is added to `texts`. Raises IndexError for an event after the
    last read.
    """
    gaps = array("I")
    while (end := data.find(END, at, stop)) >= 0:
        size, _, rest = data[at:end].partition(between)
        text = known.get(rest)
        # Written otherwise, and it is read with less haste.
        if text is None or size != b"%x" % (end - at - len(size)):
            break
        after, its_read = end + len(END), read
        while ends[its_read] < after - AFTER_EVENT:
            its_read += 1
        gap_ns = stamps[its_read] - last_wall_ns
        if not 0 <= gap_ns <= LONGEST_GAP_NS:
            break
        at, read, last_wall_ns = after, its_read, stamps[its_read]
        gaps.append(gap_ns)
        if texts is not None:
            texts.append(text)
    return at, read, gaps.tobytes()


take_plain = interpreted_take_plain if compiled is None else compiled.take_plain
