"""The check of a response before the next turn agrees with its record."""

import pytest

from aiperf_svc.core.responses.http1 import parse_head
from aiperf_svc.core.responses.response_check import error_of
from aiperf_svc.core.responses.response_format import ResponseFormat
from tests.support.raw_batches import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    UNFRAMED_HEAD,
    Request,
    chunk,
    config_of,
    delta,
    finish,
    plain,
    reads_of,
    record_of,
    sse,
    stream,
    usage,
)

ERROR = b'{"error":{"message":"boom"}}'
TOKEN, QUOTED = delta(content="a"), delta(content='{"error": 1}')
TYPED = UNFRAMED_HEAD + sse(TOKEN) + b"%b" + sse(finish()) + DONE
WHOLE = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'


def found_in(raw: bytes, *, streaming: bool, kind: str = "chat") -> str:
    """Return the message of the check, which equals that of the record."""
    at = raw.index(b"\r\n\r\n") + 4
    format = ResponseFormat.of(config_of(streaming=streaming, kind=kind).endpoint)
    framing = parse_head(raw[:at]).framing
    found = error_of(raw, body_offset=at, framing=framing, format=format)
    record = record_of(Request(reads=reads_of(raw)), streaming=streaming, kind=kind)
    assert [each.message for each in record.errors] == ([found] if found else [])
    return found


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (stream(TOKEN, finish(), usage()), ""),
        (stream(TOKEN), ""),
        (stream(QUOTED, finish()), ""),
        (stream(delta(content="x" * 5_000), finish()), ""),
        (stream(finish(), usage(3, 1)), ""),
        (stream(finish(), usage(3, 9)), "no event of the stream has content"),
        (stream(TOKEN, ERROR, finish()), "boom"),
        (stream(TOKEN, b'{"detail":"boom"}', finish()), "boom"),
        (TYPED % b"event: error\ndata: boom\n\n", "boom"),
        (TYPED % b"data: boom\r\nevent:error\r\n\r\n", "boom"),
        (TYPED % b"event: error\n: boom\n\n", "boom"),
        (TYPED % b'error: {"message":"boom"}\n\n', "boom"),
        (stream(TOKEN, finish(reason="abort")), "finish reason 'abort'"),
        (stream(TOKEN, finish(reason="error")), "finish reason 'error'"),
        (STREAM_HEAD + chunk(sse(TOKEN)) + LAST_CHUNK, "without [DONE] or a finish reason"),
        (STREAM_HEAD + LAST_CHUNK, "no event of the stream has content"),
        (plain(WHOLE), "content type application/json"),
    ],
)
def test_streams_count_as_their_records_do(raw: bytes, message: str) -> None:
    found = found_in(raw, streaming=True)
    assert message in found
    assert bool(found) == bool(message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (plain(WHOLE), ""),
        (plain(ERROR), "boom"),
        (plain(b'{"choices":[]}'), "the response has no content"),
        (plain(b""), "the body is empty"),
        (plain(b"", status=b"302 Found"), "redirects are not followed"),
    ],
)
def test_whole_responses_count_as_their_records_do(raw: bytes, message: str) -> None:
    found = found_in(raw, streaming=False)
    assert message in found
    assert bool(found) == bool(message)


def test_null_error_of_a_response_is_none() -> None:
    events = [
        b'{"type":"response.created","response":{"error":null}}',
        b'{"type":"response.output_text.delta","delta":"a"}',
        b'{"type":"response.completed","response":{"status":"completed","error": null}}',
    ]
    raw = STREAM_HEAD + b"".join(chunk(sse(each)) for each in events) + LAST_CHUNK
    assert found_in(raw, streaming=True, kind="responses") == ""
