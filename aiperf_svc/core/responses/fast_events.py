"""Counts events that are in the cache: the innermost step of a record processor.

Nearly all events of a stream are one more token, with the same frame and beginning. Their content
is looked up, and only their time is added to a record. A C version (`_fast_events.c`) is used if it
has been compiled. Both versions stop at the first event of any other form, where `events` and
`reader` continue: they determine the meaning of an event.
"""

from array import array
from collections.abc import Mapping
from typing import Final

from aiperf_svc.core.responses.text import utf8_size

try:
    from aiperf_svc.core.responses._fast_events import take_tokens as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there

END: Final = b"\n\n\r\n"
"""End of an event and of the chunk around it."""
AFTER_EVENT: Final = len(b"\r\n")
"""Number of bytes of `END` that belong to the chunk."""
MAX_GAP_NS: Final = 2**32 - 1


def interpreted_take_tokens(
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
) -> tuple[int, int, bytes, int]:
    """Take the leading chunks of `data[at:stop]` that consist of a size, `between`, a key of
    `known`, and `END`. Returns the offset after them, the read that contains the last one, the gap
    from each event to the previous one (which came at `last_wall_ns` before the first), and the
    size of their texts in bytes of UTF-8. An event whose gap is negative or over `MAX_GAP_NS`
    is not taken.

    `between` begins with the end of a size line. `ends` and `stamps` are those of all reads, int64;
    `read` is a read that ends no later than the first such event. Gaps are uint32, in the machine's
    byte order. The value in `known` of each event is added to `texts`. Raises IndexError for an
    event after the last read.
    """
    gaps, size_of_texts = array("I"), 0
    while (end := data.find(END, at, stop)) >= 0:
        size, _, rest = data[at:end].partition(between)
        text = known.get(rest)
        # Not in the usual form, so the general code parses it.
        if text is None or size != b"%x" % (end - at - len(size)):
            break
        after, its_read = end + len(END), read
        while ends[its_read] < after - AFTER_EVENT:
            its_read += 1
        gap_ns = stamps[its_read] - last_wall_ns
        if not 0 <= gap_ns <= MAX_GAP_NS:
            break
        at, read, last_wall_ns = after, its_read, stamps[its_read]
        gaps.append(gap_ns)
        size_of_texts += utf8_size(text)
        if texts is not None:
            texts.append(text)
    return at, read, gaps.tobytes(), size_of_texts


take_tokens = interpreted_take_tokens if compiled is None else compiled
