"""Errors of responses: kind, message, outcome."""

import pytest

from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from tests.support.raw_batches import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    UNFRAMED_HEAD,
    Request,
    assembler_of,
    batch_of,
    chunk,
    delta,
    finish,
    plain,
    reads_of,
    record_of,
    sse,
    stream,
    usage,
)

NONE, EMPTY, MALFORMED = ErrorKind.NONE, ErrorKind.EMPTY, ErrorKind.MALFORMED
SERVER, STATUS, PROTOCOL = ErrorKind.SERVER, ErrorKind.STATUS, ErrorKind.PROTOCOL
TYPE, DISCONNECTED = ErrorKind.CONTENT_TYPE, ErrorKind.DISCONNECTED
A = delta(content="a")
TOKEN = chunk(sse(A))
RESPONSE = b'{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}'
NO_EVENT = "no event of the stream has content"


def chunks(*parts: bytes) -> bytes:
    """Return a stream of these chunks."""
    return STREAM_HEAD + b"".join(map(chunk, parts)) + LAST_CHUNK


# Name: (raw response, kind, part of the message)
STREAMED = {
    "good": (stream(A, finish()), NONE, ""),
    "no [DONE] but a finish reason": (chunks(sse(A), sse(finish())), NONE, ""),
    "no finish reason but [DONE]": (chunks(sse(A), DONE), NONE, ""),
    "[DONE] without its empty line": (chunks(sse(A), b"data: [DONE]\n"), NONE, ""),
    "no content type": (b"HTTP/1.1 200 OK\r\n\r\n" + sse(A) + DONE, NONE, ""),
    "neither": (chunks(sse(A)), DISCONNECTED, "the stream ended without [DONE] or a finish reason"),
    "no content": (
        stream(delta(role="assistant", content=""), finish(), usage()), EMPTY, NO_EVENT,
    ),
    "no event": (STREAM_HEAD + LAST_CHUNK, EMPTY, NO_EVENT),
    "bad json": (stream(A, b'{"choices":[', finish()), MALFORMED, "choices"),
    "invalid utf-8": (stream(b'{"choices":[{"delta":{"content":"\xff"}}]}'), MALFORMED, ""),
    "html in an event": (stream(b"<html>oops</html>"), MALFORMED, "<html>oops"),
    "json cut by a line end": (
        chunks(b'data: {"choices":\ndata [{"delta":{"content":"a"}}]}\n\n'), MALFORMED, "",
    ),
    "json over lines without data": (
        chunks(b'data: {"choices":[\n{"delta":{"content":"a"}}]}\n\n'), MALFORMED, "",
    ),
    "error object": (
        stream(A, b'{"error":{"message":"out of memory","code":500}}'), SERVER, "out of memory",
    ),
    "event of type error": (
        chunks(b'event: error\ndata: {"error":{"message":"boom"}}\n\n'), SERVER, "boom",
    ),
    "event of type error, plain text": (
        chunks(b"event: error\ndata: it broke\n\n"), SERVER, "it broke",
    ),
    "error in a comment, as of Dynamo": (
        chunks(sse(A), b"event: error\n: it broke\n\n", DONE), SERVER, "it broke",
    ),
    "error in a field, as of llama.cpp": (
        chunks(sse(A), b'error: {"code":500,"message":"boom"}\n\n', DONE), SERVER, "boom",
    ),
    "long prompt in a field": (
        chunks(b'error: {"message":"exceeds the available context size"}\n\n', DONE),
        ErrorKind.CONTEXT_OVERFLOW, "available context size",
    ),
    "html": (
        plain(b"<h1>hi</h1>", content_type=b"text/html"),
        TYPE, "content type text/html, expected text/event-stream: <h1>hi</h1>",
    ),
    "json for a stream": (plain(RESPONSE), TYPE, "content type application/json"),
    "error object with a good status": (
        plain(b'{"error":{"message":"no such model"}}'), SERVER, "no such model",
    ),
    "redirect": (
        plain(b"elsewhere", status=b"302 Found", content_type=b"text/plain"),
        STATUS, "status 302, and redirects are not followed: elsewhere",
    ),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", EMPTY, "no event"),
    "broken chunk": (STREAM_HEAD + TOKEN + b"zz\r\n", PROTOCOL, "no chunk size"),
    "after the end": (chunks(sse(A), DONE) + b"more", PROTOCOL, ""),
}  # fmt: skip
WHOLE = {
    "good": (plain(RESPONSE), NONE, ""),
    "good, other parameters": (
        plain(RESPONSE, content_type=b"application/json; charset=utf-8"), NONE, "",
    ),
    "empty body": (plain(b""), EMPTY, "the body is empty"),
    "no content": (
        plain(b'{"choices":[{"message":{"content":""}}]}'), EMPTY, "the response has no content",
    ),
    "bad json": (plain(RESPONSE[:-1]), MALFORMED, ""),
    "other json": (plain(b'{"a":1}'), MALFORMED, '{"a":1}'),
    "error object": (plain(b'{"error":"overloaded"}'), SERVER, "overloaded"),
    "detail": (plain(b'{"detail":"not here"}'), SERVER, "not here"),
    "stream for json": (
        stream(A, finish()), TYPE, "content type text/event-stream, expected application/json",
    ),
}  # fmt: skip


def check(raw: bytes, kind: ErrorKind, message: str, *, streaming: bool, step: int) -> None:
    parts = [raw[i : i + step] for i in range(0, len(raw), step)]
    record = record_of(Request(reads=reads_of(*parts)), streaming=streaming)
    row = record.rows[0]
    assert ErrorKind(int(row["error"])) == kind, record.errors
    assert row["outcome"] == (Outcome.ERRORED if kind else Outcome.COMPLETED)
    if kind:
        (sample,) = record.errors
        assert (sample.phase, sample.kind, sample.count) == (Phase.PROFILING, kind, 1)
        assert sample.status == row["status"]
        assert message in sample.message
        assert 0 < len(sample.message) <= 500
    else:
        assert not record.errors


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("name", STREAMED)
def test_each_streamed_response_has_its_error_kind(name: str, step: int) -> None:
    raw, kind, message = STREAMED[name]
    check(raw, kind, message, streaming=True, step=step)


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("name", WHOLE)
def test_each_whole_response_has_its_error_kind(name: str, step: int) -> None:
    raw, kind, message = WHOLE[name]
    check(raw, kind, message, streaming=False, step=step)


def errored(raw: bytes, kind: ErrorKind, message: str = "as the worker saw it") -> tuple[int, str]:
    request = Request(
        reads=reads_of(raw) if raw else [], outcome=Outcome.ERRORED, error=kind, message=message
    )
    record = record_of(request)
    assert record.rows["outcome"] == [Outcome.ERRORED]
    (sample,) = record.errors
    return sample.kind, sample.message


@pytest.mark.parametrize(
    "kind", [ErrorKind.CONNECT, ErrorKind.DNS, ErrorKind.TIMEOUT, ErrorKind.NO_RESOURCES]
)
def test_error_before_any_response_is_the_workers(kind: ErrorKind) -> None:
    assert errored(b"", kind) == (kind, "as the worker saw it")


def test_cut_stream_is_an_error_that_keeps_tokens() -> None:
    raw = STREAM_HEAD + TOKEN + TOKEN
    assert errored(raw, ErrorKind.DISCONNECTED)[0] == ErrorKind.DISCONNECTED
    request = Request(reads=reads_of(raw), outcome=Outcome.ERRORED, error=ErrorKind.TIMEOUT)
    row = record_of(request).rows[0]
    assert row["chunks"] == 2
    assert row["first_token_wall_ns"]


def test_error_in_the_response_comes_before_its_ending() -> None:
    raw = STREAM_HEAD + chunk(sse(b'{"error":{"message":"out of memory"}}'))
    assert errored(raw, ErrorKind.DISCONNECTED) == (ErrorKind.SERVER, "out of memory")
    assert errored(raw, ErrorKind.TIMEOUT) == (ErrorKind.SERVER, "out of memory")


def test_an_incomplete_head_is_the_workers_error() -> None:
    assert errored(b"HTTP/1.1 200 OK\r\nContent-", ErrorKind.DISCONNECTED) == (
        ErrorKind.DISCONNECTED,
        "as the worker saw it",
    )


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"error":{"message":"slow down"}}', b"application/json", "slow down"),
        (b"<html>Bad Gateway</html>", b"text/html", "Bad Gateway"),
        (b"", b"text/plain", "status 429"),
        (b"x" * 100_000, b"text/plain", "x" * 500),
    ],
)
def test_a_bad_status_is_explained_by_the_body(
    body: bytes, content_type: bytes, expected: str
) -> None:
    raw = plain(body, status=b"429 Too Many Requests", content_type=content_type)
    assert errored(raw, ErrorKind.STATUS, "") == (ErrorKind.STATUS, expected)


def test_cancelled_request_is_never_an_error() -> None:
    raw = STREAM_HEAD + TOKEN + chunk(sse(b'{"error":{"message":"out of memory"}}'))
    request = Request(reads=reads_of(raw), outcome=Outcome.CANCELLED, message="cut")
    record = record_of(request)
    assert (record.rows["outcome"], record.rows["error"]) == ([Outcome.CANCELLED], [0])
    assert record.rows["chunks"] == [1]
    assert not record.errors


def test_embeddings_without_a_vector_are_empty() -> None:
    for body, kind in (
        (b'{"data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":3}}', ErrorKind.NONE),
        (b'{"data":[]}', ErrorKind.EMPTY),
    ):
        record = record_of(Request(reads=reads_of(plain(body))), streaming=False, kind="embeddings")
        assert record.rows["error"] == [kind]


def test_nothing_after_an_error_is_counted() -> None:
    raw = UNFRAMED_HEAD + b"".join(
        (sse(delta(content="a")), sse(b'{"error":"no"}'), sse(delta(content="b")))
    )
    assert record_of(Request(reads=reads_of(raw))).rows["chunks"] == [1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"id":"a",', b'"choices":[{"delta":{"content":"a"}}]}'),
        (b'{"id":"a","choices":[', b'{"delta":{"content":"a"}}]}'),
    ],
)
def test_cut_line_is_not_read_as_whole_lines(before: bytes, after: bytes) -> None:
    lines = b"data: %b\ndata: %b\n\n" % (before, after)
    cut = b"data: %b\n%b\n\n" % (before, after)
    good = STREAM_HEAD + chunk(lines) + TOKEN + chunk(lines) + chunk(DONE) + LAST_CHUNK
    first = Request(reads=reads_of(good))
    second = Request(reads=reads_of(STREAM_HEAD + chunk(cut) + LAST_CHUNK), request_id=2)
    (made,) = assembler_of().process(batch_of(first, second), worker_rank=0)
    assert made.rows["chunks"].tolist() == [3, 0]
    assert made.rows["error"].tolist() == [ErrorKind.NONE, ErrorKind.MALFORMED]
