"""Where the framing of a whole response is: short responses of one server repeat it to the byte.

To find the end of a response is to read its head and then each chunk's size line; nothing else in
it counts. Responses of one length mostly have the same head and the same size lines at the same
offsets, so the framing of a response that has been walked through once is remembered: a `struct`
picks just those bytes out of the next one, and one comparison then says as much as the walk.
"""

from collections.abc import Callable
from itertools import chain
from struct import Struct
from typing import Any, Final, NamedTuple

from aiperf_svc.core.responses.http1 import chunk_size
from aiperf_svc.protocol.records import Framing

MAX_LAYOUTS: Final = 1_024
"""One for each length of a response."""
_MAX_CHUNKS: Final = 32
"""Longer responses vary too much in length to repeat."""
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Layout(NamedTuple):
    """What all responses have in common for which `pick(response) == picked`."""

    pick: Callable[[bytes], tuple[Any, ...]]
    picked: tuple[Any, ...]
    status: int
    framing: int
    body_offset: int
    response: bytes
    """One of them."""
    spans: bytes
    """Where in it the bytes are that are picked: begin and end, exclusive, of each as uint32."""


def layout_of(response: bytes, *, status: int, framing: int, body_offset: int) -> Layout | None:
    """The layout of a whole response, just to its last byte; None when it is not worth remembering.

    `body_offset` is the length of its head, interim ones before it included.
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
            # The two bytes that end a chunk are passed over by all that look for a response's end.
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
