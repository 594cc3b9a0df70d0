"""Endless responses at a record processor: their memory is bounded, and their records report it."""

import pytest

from aiperf_svc.core.records import assembly as record_assembly
from aiperf_svc.core.records.assembly import RecordAssembler
from aiperf_svc.core.records.batch_builder import MetricParts
from aiperf_svc.core.responses import reader as response_reader
from aiperf_svc.core.responses import sse as sse_module
from aiperf_svc.core.responses.sse import EventStream, EventTooLarge
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from tests.support.raw_batches import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Request,
    assembler_of,
    batch_of,
    chunk,
    delta,
    finish,
    reads_of,
    sse,
)

MAX_BYTES = 10_000
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_module, "MAX_EVENT_BYTES", MAX_BYTES)
    monkeypatch.setattr(response_reader, "MAX_BODY_BYTES", MAX_BYTES)


def request_of(*parts: bytes, request_id: int = 1, outcome: Outcome = Outcome.COMPLETED) -> Request:
    """Return a request with one read and one fragment for each part."""
    cuts = tuple(range(1, len(parts)))
    return Request(
        reads=reads_of(*parts), cuts=cuts, request_id=request_id, seq=request_id, outcome=outcome
    )


def max_held(assembler: RecordAssembler, request: Request) -> tuple[int, MetricParts]:
    """Feed a request's fragments. Return the peak memory and the record."""
    held = 0
    for fragment in request.fragments():
        done = assembler.process(batch_of(fragment), worker_rank=0)
        held = max(held, sum(reader.held_bytes for reader in assembler.unfinished))
    (record,) = done
    return held, record


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        (STREAM_HEAD + chunk(b"data: "), chunk(b"x" * 1_000)),
        (STREAM_HEAD, chunk(b"data: x\n" * 100)),
        (STREAM_HEAD, chunk(b"data:\n" * 100)),
        (STREAM_HEAD + b"fffffff\r\ndata: ", b"x" * 1_000),
        (STREAM_HEAD + chunk(b": "), chunk(b"x" * 1_000)),
    ],
)
def test_an_event_without_an_end_is_too_large(begin: bytes, rest: bytes) -> None:
    held, record = max_held(assembler_of(), request_of(begin, *[rest] * 50))
    assert held <= MAX_BYTES
    assert record.rows["error"].tolist() == [ErrorKind.TOO_LARGE]
    assert record.errors[0].message == "an event of over 0 MiB"


def test_comments_without_end_hold_nothing() -> None:
    parts = [chunk(b": nothing\n" * 100)] * 50
    end = chunk(b"\n") + chunk(sse(delta(content="a"))) + chunk(DONE) + LAST_CHUNK
    held, record = max_held(assembler_of(), request_of(STREAM_HEAD, *parts, end))
    assert held <= 100
    assert record.rows["error"].tolist() == [ErrorKind.NONE]


def test_a_body_without_an_end_is_too_large() -> None:
    assembler = assembler_of(streaming=False)
    held, record = max_held(assembler, request_of(JSON_HEAD, *[b" " * 1_000] * 50))
    assert held <= MAX_BYTES
    assert record.rows["error"].tolist() == [ErrorKind.TOO_LARGE]
    assert record.errors[0].message == "a body of over 0 MiB"


def test_cancelled_oversized_response_is_no_error() -> None:
    parts = [chunk(b"x" * 1_000)] * 50
    request = request_of(STREAM_HEAD + chunk(b"data: "), *parts, outcome=Outcome.CANCELLED)
    _, record = max_held(assembler_of(), request)
    assert record.rows["outcome"].tolist() == [Outcome.CANCELLED]
    assert record.errors == ()


def test_event_may_come_in_many_parts() -> None:
    stream = EventStream()
    part = b"x" * 400
    for _ in range(10):
        stream.feed(b"data: ", [(0, 6)])
        for _ in range(20):
            stream.feed(part, [(0, len(part))])
        assert stream.held_bytes >= 8_000
        (event,) = stream.feed(b"\n\n", [(0, 2)])
        assert len(event[0]) == 8_000
        assert stream.held_bytes == 0


def test_whole_line_counts_once() -> None:
    stream = EventStream()
    stream.feed(b"data: " + b"x" * 8_000, [(0, 8_006)])
    stream.feed(b"\n", [(0, 1)])
    assert 8_000 <= stream.held_bytes <= 8_200
    with pytest.raises(EventTooLarge):
        stream.feed(b"data: " + b"x" * 2_000 + b"\n", [(0, 2_007)])


def test_largest_unfinished_response_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_assembly, "MAX_OPEN_BYTES", 50_000)
    monkeypatch.setattr(record_assembly, "LARGE_BYTES", 5_000)
    monkeypatch.setattr(record_assembly, "CHECK_BYTES", 20_000)
    assembler = assembler_of()
    token = chunk(sse(delta(content="a")))
    end = chunk(sse(finish())) + LAST_CHUNK
    small = [request_of(STREAM_HEAD + token * 500, end, request_id=i) for i in range(2, 12)]
    for request in small:
        assembler.process(batch_of(request.fragments()[0]), worker_rank=0)
    endless = request_of(STREAM_HEAD, *[token * 200] * 200, end, request_id=1)
    held, record = max_held(assembler, endless)
    assert held <= 50_000 + 20_000
    assert record.rows["error"].tolist() == [ErrorKind.TOO_LARGE]
    assert "11 unfinished responses held over" in record.errors[0].message
    for request in small:
        (record,) = assembler.process(batch_of(request.fragments()[1]), worker_rank=0)
        assert record.rows["error"].tolist() == [ErrorKind.NONE]


def test_many_small_responses_are_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_assembly, "MAX_OPEN_BYTES", 10_000)
    monkeypatch.setattr(record_assembly, "LARGE_BYTES", 5_000)
    monkeypatch.setattr(record_assembly, "CHECK_BYTES", 5_000)
    assembler = assembler_of()
    token = chunk(sse(delta(content="a")))
    end = chunk(sse(finish())) + LAST_CHUNK
    requests = [request_of(STREAM_HEAD + token * 500, end, request_id=i) for i in range(1, 21)]
    for request in requests:
        assembler.process(batch_of(request.fragments()[0]), worker_rank=0)
    for request in requests:
        (record,) = assembler.process(batch_of(request.fragments()[1]), worker_rank=0)
        assert record.rows["error"].tolist() == [ErrorKind.NONE]
