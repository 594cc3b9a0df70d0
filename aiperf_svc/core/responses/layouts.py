"""Caches the position of the framing in complete responses, because short responses of a server
repeat it exactly.

Only the head and each chunk's size line are needed to find the end of a response. Responses of the
same length mostly have the same head and the same size lines at the same offsets. So the framing of
a parsed response is cached: a `struct` extracts these bytes from the next response, and one
comparison replaces the parsing.
"""

from collections.abc import Callable
from itertools import chain
from struct import Struct
from typing import Any, Final, NamedTuple

from aiperf_svc.core.responses.http1 import chunk_size
from aiperf_svc.protocol.records import Framing

MAX_LAYOUTS: Final = 1_024
"""Maximum number of layouts: one for each length of a response."""
_MAX_CHUNKS: Final = 32
"""Maximum chunks of a cached layout. Longer responses vary too much in length to repeat."""
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Layout(NamedTuple):
    """Layout of all responses for which `pick(response) == picked`."""

    pick: Callable[[bytes], tuple[Any, ...]]
    picked: tuple[Any, ...]
    status: int
    framing: int
    body_offset: int
    response: bytes
    """One of these responses."""
    spans: bytes
    """Positions of the picked bytes: begin and end, exclusive, of each piece as uint32."""


def layout_of(response: bytes, *, status: int, framing: int, body_offset: int) -> Layout | None:
    """Return the layout of a response that ends with its last byte; None if caching is not
    worthwhile.

    `body_offset` is the length of its head, including interim ones before it.
    """
    spans = [(0, body_offset)]
    if framing == Framing.CHUNKED:
        at = body_offset
        for _ in range(_MAX_CHUNKS):
            begin = response.find(b"\n", at) + 1
            size = chunk_size(response[at:begin]) if begin else -1
            if size <= 0:
                break
            spans.append((at, begin))
            # The two bytes that end a chunk are not checked when a response's end is searched.
            at = begin + size + 2
        if response[at:] != _LAST_CHUNK:
            return None
        spans.append((at, len(response)))
    elif framing != Framing.LENGTH:
        return None
    pattern, at = "", 0
    for begin, end in spans:
        pattern += f"{begin - at}x{end - begin}s"
        at = end
    pick = Struct(f"{pattern}{len(response) - at}x").unpack
    places = Struct(f"{2 * len(spans)}I").pack(*chain.from_iterable(spans))
    return Layout(pick, pick(response), status, framing, body_offset, response, places)
