"""What is wrong with a response: kind, message, outcome."""

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

TOKEN = chunk(sse(delta(content="a")))
FINISH = chunk(sse(finish()))
RESPONSE = b'{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}'

# Name: (streaming, raw response, kind, part of the message)
STREAMED = {
    "good": (stream(delta(content="a"), finish()), ErrorKind.NONE, ""),
    "no [DONE] but a finish reason": (
        STREAM_HEAD + TOKEN + FINISH + LAST_CHUNK,
        ErrorKind.NONE,
        "",
    ),
    "no finish reason but [DONE]": (
        STREAM_HEAD + TOKEN + chunk(DONE) + LAST_CHUNK,
        ErrorKind.NONE,
        "",
    ),
    "[DONE] without its empty line": (
        STREAM_HEAD + TOKEN + chunk(b"data: [DONE]\n") + LAST_CHUNK,
        ErrorKind.NONE,
        "",
    ),
    "no content type": (
        b"HTTP/1.1 200 OK\r\n\r\n" + sse(delta(content="a")) + DONE,
        ErrorKind.NONE,
        "",
    ),
    "neither": (
        STREAM_HEAD + TOKEN + LAST_CHUNK,
        ErrorKind.DISCONNECTED,
        "the stream ended without [DONE] or a finish reason",
    ),
    "no content": (
        stream(delta(role="assistant", content=""), finish(), usage()),
        ErrorKind.EMPTY,
        "no event of the stream has content",
    ),
    "no event": (STREAM_HEAD + LAST_CHUNK, ErrorKind.EMPTY, "no event of the stream has content"),
    "bad json": (
        stream(delta(content="a"), b'{"choices":[', finish()),
        ErrorKind.MALFORMED,
        "choices",
    ),
    "invalid utf-8": (
        stream(b'{"choices":[{"delta":{"content":"\xff"}}]}'),
        ErrorKind.MALFORMED,
        "",
    ),
    "html in an event": (stream(b"<html>oops</html>"), ErrorKind.MALFORMED, "<html>oops"),
    "json cut by a line end": (
        STREAM_HEAD
        + chunk(b'data: {"choices":\ndata [{"delta":{"content":"a"}}]}\n\n')
        + LAST_CHUNK,
        ErrorKind.MALFORMED,
        "",
    ),
    "json over lines without data": (
        STREAM_HEAD + chunk(b'data: {"choices":[\n{"delta":{"content":"a"}}]}\n\n') + LAST_CHUNK,
        ErrorKind.MALFORMED,
        "",
    ),
    "error object": (
        stream(delta(content="a"), b'{"error":{"message":"out of memory","code":500}}'),
        ErrorKind.SERVER,
        "out of memory",
    ),
    "event of type error": (
        STREAM_HEAD + chunk(b'event: error\ndata: {"error":{"message":"boom"}}\n\n') + LAST_CHUNK,
        ErrorKind.SERVER,
        "boom",
    ),
    "event of type error, plain text": (
        STREAM_HEAD + chunk(b"event: error\ndata: it broke\n\n") + LAST_CHUNK,
        ErrorKind.SERVER,
        "it broke",
    ),
    "html": (
        plain(b"<h1>hi</h1>", content_type=b"text/html"),
        ErrorKind.CONTENT_TYPE,
        "content type text/html, expected text/event-stream: <h1>hi</h1>",
    ),
    "json for a stream": (plain(RESPONSE), ErrorKind.CONTENT_TYPE, "content type application/json"),
    "error object with a good status": (
        plain(b'{"error":{"message":"no such model"}}'),
        ErrorKind.SERVER,
        "no such model",
    ),
    "redirect": (
        plain(b"elsewhere", status=b"302 Found", content_type=b"text/plain"),
        ErrorKind.STATUS,
        "status 302, and redirects are not followed: elsewhere",
    ),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", ErrorKind.EMPTY, "no event"),
    "broken chunk": (STREAM_HEAD + TOKEN + b"zz\r\n", ErrorKind.PROTOCOL, "no chunk size"),
    "after the end": (
        STREAM_HEAD + TOKEN + chunk(DONE) + LAST_CHUNK + b"more",
        ErrorKind.PROTOCOL,
        "",
    ),
}
WHOLE = {
    "good": (plain(RESPONSE), ErrorKind.NONE, ""),
    "good, other parameters": (
        plain(RESPONSE, content_type=b"application/json; charset=utf-8"),
        ErrorKind.NONE,
        "",
    ),
    "empty body": (plain(b""), ErrorKind.EMPTY, "the body is empty"),
    "no content": (
        plain(b'{"choices":[{"message":{"content":""}}]}'),
        ErrorKind.EMPTY,
        "the response has no content",
    ),
    "bad json": (plain(RESPONSE[:-1]), ErrorKind.MALFORMED, ""),
    "other json": (plain(b'{"a":1}'), ErrorKind.MALFORMED, '{"a":1}'),
    "error object": (plain(b'{"error":"overloaded"}'), ErrorKind.SERVER, "overloaded"),
    "detail": (plain(b'{"detail":"not here"}'), ErrorKind.SERVER, "not here"),
    "stream for json": (
        stream(delta(content="a"), finish()),
        ErrorKind.CONTENT_TYPE,
        "content type text/event-stream, expected application/json",
    ),
}


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
def test_a_streamed_response(name: str, step: int) -> None:
    raw, kind, message = STREAMED[name]
    check(raw, kind, message, streaming=True, step=step)


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_response(name: str, step: int) -> None:
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
def test_an_error_before_any_response_is_the_workers(kind: ErrorKind) -> None:
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


def test_nothing_after_an_error_or_the_end_is_counted() -> None:
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
