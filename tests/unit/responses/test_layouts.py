"""The layout of a response gives its end exactly as parsing its framing does."""

import pytest

from aiperf_svc.core.responses.layouts import Layout, layout_of
from aiperf_svc.protocol.records import Framing
from tests.support.raw_batches import chunk

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def chunked(*chunks: bytes, head: bytes = HEAD) -> bytes:
    return head + chunk(*chunks, b"")


def learned(response: bytes, framing: int = Framing.CHUNKED) -> Layout | None:
    head = SIZED if framing == Framing.LENGTH else HEAD
    return layout_of(response, status=200, framing=framing, body_offset=len(head))


def fits(layout: Layout | None, response: bytes) -> bool:
    assert layout is not None
    return layout.pick(response) == layout.picked


def test_responses_that_differ_only_in_their_content_fit() -> None:
    layout = learned(chunked(b"first", b"response"))
    assert fits(layout, chunked(b"other", b"response"))
    assert layout is not None
    assert (layout.status, layout.body_offset) == (200, len(HEAD))


@pytest.mark.parametrize(
    "other",
    [
        chunked(b"firs", b"response!"),
        chunked(b"first", b"response", head=HEAD.replace(b"200", b"500")),
        chunked(b"first", b"response")[:-5] + b"1\r\n\r\n",
    ],
    ids=["other sizes", "another head", "no last chunk"],
)
def test_same_length_with_other_framing_does_not_fit(other: bytes) -> None:
    first = chunked(b"first", b"response")
    assert len(other) == len(first)
    assert not fits(learned(first), other)


def test_response_with_length_is_matched_by_head() -> None:
    layout = learned(SIZED + b"hello", Framing.LENGTH)
    assert fits(layout, SIZED + b"world")
    assert not fits(layout, SIZED.replace(b"5", b"4") + b"world")


@pytest.mark.parametrize(
    "response",
    [
        chunked(b"first")[:-2] + b"Trailer: x\r\n\r\n",
        chunked(*[b"x"] * 100),
        HEAD + b"nonsense",
        HEAD + b"5\r\nfir",
    ],
    ids=["trailers", "many chunks", "no size", "not whole"],
)
def test_unusual_framing_has_no_layout(response: bytes) -> None:
    assert learned(response) is None


def test_response_until_close_has_no_layout() -> None:
    assert learned(HEAD + b"hello", Framing.UNTIL_CLOSE) is None
