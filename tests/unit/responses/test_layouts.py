"""The layout of an answer says where it ends, exactly as reading its framing does."""

import pytest

from aiperf_svc.core.responses.layouts import Layout, layout_of
from aiperf_svc.protocol.records import Framing

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def chunked(*chunks: bytes, head: bytes = HEAD) -> bytes:
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (*chunks, b""))


def learned(answer: bytes, framing: int = Framing.CHUNKED) -> Layout | None:
    head = SIZED if framing == Framing.LENGTH else HEAD
    return layout_of(answer, status=200, framing=framing, body_offset=len(head))


def fits(layout: Layout | None, answer: bytes) -> bool:
    assert layout is not None
    return layout.pick(answer) == layout.picked


def test_answers_that_differ_only_in_their_content_fit() -> None:
    layout = learned(chunked(b"first", b"answer"))
    assert fits(layout, chunked(b"other", b"answer"))
    assert layout is not None
    assert (layout.status, layout.body_offset) == (200, len(HEAD))


@pytest.mark.parametrize(
    "other",
    [
        chunked(b"firs", b"answer!"),
        chunked(b"first", b"answer", head=HEAD.replace(b"200", b"500")),
        chunked(b"first", b"answer")[:-5] + b"1\r\n\r\n",
    ],
    ids=["other sizes", "another head", "no last chunk"],
)
def test_an_answer_of_the_same_length_with_another_framing_does_not_fit(other: bytes) -> None:
    first = chunked(b"first", b"answer")
    assert len(other) == len(first)
    assert not fits(learned(first), other)


def test_of_an_answer_with_a_length_only_the_head_counts() -> None:
    layout = learned(SIZED + b"hello", Framing.LENGTH)
    assert fits(layout, SIZED + b"world")
    assert not fits(layout, SIZED.replace(b"5", b"4") + b"world")


@pytest.mark.parametrize(
    "answer",
    [
        chunked(b"first")[:-2] + b"Trailer: x\r\n\r\n",
        chunked(*[b"x"] * 100),
        HEAD + b"nonsense",
        HEAD + b"5\r\nfir",
    ],
    ids=["trailers", "many chunks", "no size", "not whole"],
)
def test_what_is_not_plain_has_no_layout(answer: bytes) -> None:
    assert learned(answer) is None


def test_an_answer_that_ends_with_its_connection_has_no_layout() -> None:
    assert learned(HEAD + b"hello", Framing.UNTIL_CLOSE) is None
