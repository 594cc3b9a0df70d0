"""A cached response makes the same record as a parsed one."""

import numpy as np
import pytest

from aiperf_svc.core.records.batch_builder import MetricParts
from aiperf_svc.core.records.response_cache import ResponseCache
from aiperf_svc.protocol.messages.records import RawBatch
from tests.support.raw_batches import (
    DONE,
    LAST_CHUNK,
    MS_NS,
    START,
    STREAM_HEAD,
    Read,
    Request,
    Words,
    assembler_of,
    batch_of,
    chunk,
    delta,
    finish,
    sse,
    usage,
)

END = chunk(DONE) + LAST_CHUNK


def response(*events: bytes, end: bytes = END) -> bytes:
    return STREAM_HEAD + b"".join(chunk(sse(event)) for event in events) + end


def one_token(request: int, content: str = "a") -> bytes:
    return response(delta(request, content=content), finish(request), usage(request=request))


RESPONSES = {
    "one token": one_token,
    "another text for each": lambda request: one_token(request, "abc"[request % 3]),
    "three tokens": lambda r: response(*[delta(r, content="a")] * 3, finish(r)),
    "thoughts first": lambda r: response(delta(r, reasoning="a"), delta(r, content="b"), finish(r)),
    "only thoughts": lambda r: response(delta(r, reasoning="a"), finish(r)),
    "the token comes last": lambda r: response(delta(r, content="a"), end=LAST_CHUNK),
    "blank tokens": lambda r: response(
        *(delta(r, content=text) for text in ("", "a", "")), finish(r), usage(50, 3, r)
    ),
    "a blank that may be a token": lambda r: response(
        delta(r, content=""), delta(r, content="a"), finish(r)
    ),
    "hidden reasoning": lambda r: response(
        delta(r, content="a"),
        finish(r),
        usage(50, 101, r, completion_tokens_details={"reasoning_tokens": 100}),
    ),
    "no content": lambda r: response(finish(r)),
    "cut off": lambda r: response(delta(r, content="a"), end=b""),
    "an error": lambda r: response(b'{"id":"x","error":{"message":"no"}}'),
    "no stream": lambda r: b'HTTP/1.1 200 OK\r\n\r\n{"id":"r%d","choices":[]}' % r,
    "events in one chunk": lambda r: (
        STREAM_HEAD + chunk(sse(delta(r, content="a")) + sse(finish(r))) + END
    ),
}


def batch(name: str, count: int, *, polled: int = -1) -> RawBatch:
    """Return requests with ids of one length and different times, polled `polled` ms after
    start."""
    requests = []
    for place in range(count):
        stamp = START + (10 + place) * MS_NS
        read = Read(RESPONSES[name](100 + place), stamp, polled=START + polled * MS_NS)  # type: ignore[no-untyped-call]
        requests.append(Request([read], request_id=place + 1, seq=place + 1, index=place))
    return batch_of(*requests)


def made(raw: RawBatch) -> list[MetricParts]:
    assembler = assembler_of()
    return [part for _ in range(3) for part in assembler.process(raw, worker_rank=1)]


@pytest.mark.parametrize("polled", [-1, 2, 60], ids=["before", "meanwhile", "after"])
@pytest.mark.parametrize("name", RESPONSES)
def test_cached_responses_make_the_same_records(
    name: str, polled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = batch(name, 40, polled=polled)
    known = made(raw)
    monkeypatch.setattr(ResponseCache, "find", lambda *_, **__: None)
    read = made(raw)
    for one, other in zip(known, read, strict=True):
        assert (one.rows == other.rows).all()
        assert one.details == other.details
        assert one.errors == other.errors
        assert one.histograms == other.histograms


def test_text_of_cached_responses_is_counted() -> None:
    counter = Words()
    assembler = assembler_of(counter=counter)
    (part,) = assembler.process(batch("another text for each", 6), worker_rank=0)
    assert [text for texts in counter.batches for text in texts if text] == [
        "b",
        "c",
        "a",
        "b",
        "c",
        "a",
    ]
    assert np.array_equal(part.rows["output_tokens"], [1] * 6)


def test_response_differing_beyond_its_id_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[bytes] = []
    learn = ResponseCache._parse_and_cache

    def note(self: ResponseCache, data: bytes, *where: int) -> object:
        learned.append(data)
        return learn(self, data, *where)

    monkeypatch.setattr(ResponseCache, "_parse_and_cache", note)
    made(batch("another text for each", 30))
    assert len(learned) == 3
