"""Unusual but complete responses are good. An unreadable one is one error."""

import json

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import Delta, parse_odd
from aiperf_svc.core.endpoints.chat import CHAT, CONVERSATIONS
from aiperf_svc.core.endpoints.custom import custom_endpoint
from aiperf_svc.core.endpoints.messages import MESSAGES
from aiperf_svc.core.endpoints.responses import RESPONSES
from aiperf_svc.core.responses import reader
from aiperf_svc.core.responses.reader import ResponseReader
from aiperf_svc.core.responses.response_format import ResponseFormat
from aiperf_svc.core.responses.text import reply_of
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Framing
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
    event_json,
    finish,
    plain,
    reads_of,
    record_of,
    sse,
    stream,
    usage,
)

FIRST, SECOND = delta(content="NaN, he said"), delta(content=' "Infinity"')
LOGPROBS = (
    b'{"id":"x","choices":[{"index":0,"delta":{"content":"NaN \\"-Infinity"},'
    b'"logprobs":{"content":[{"logprob":-Infinity,"top":[NaN, Infinity]}]}}]}'
)
DEEP = b"[" * 100_000
TOOL_CALL = {"id": "0", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
ODD_EVENTS = {
    "a ping with text": b"event: ping\ndata: 2026-01-01T00:00:00\n\n",
    "a ping with an object": b"event:ping\ndata: {}\n\n",
    "a ping in JSON": b'event: ping\ndata: {"type": "ping"}\n\n',
    "a ping with CRLF": b"event: ping\r\ndata: x\r\n\r\n",
    "a heartbeat": b"data: ok\nevent: heartbeat\n\n",
    "a keep-alive": b"event: keep-alive\ndata\n\n",
    "empty data": b"data:\n\n",
    "empty data behind a space": b"data: \n\n",
    "empty data of several lines": b"data:\ndata:\n\n",
    "a comment": b": ping\n\n",
}


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("name", ODD_EVENTS)
@pytest.mark.parametrize("is_chunked", [True, False])
def test_events_without_content_are_ignored(name: str, step: int, is_chunked: bool) -> None:
    odd = ODD_EVENTS[name]
    events = [odd, sse(FIRST), odd, sse(SECOND), odd, odd, sse(finish()), odd, sse(usage(3, 2))]
    events += [DONE, odd]
    raw = UNFRAMED_HEAD + b"".join(events)
    if is_chunked:
        raw = STREAM_HEAD + b"".join(map(chunk, events)) + LAST_CHUNK
    check_good(raw, step=step)


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_space_behind_done_is_ignored(step: int) -> None:
    events = [sse(FIRST), sse(SECOND), sse(usage(3, 2)), b"data: [DONE] \n\n"]
    check_good(UNFRAMED_HEAD + b"".join(events), step=step)
    raw = STREAM_HEAD + b"".join(map(chunk, events)) + LAST_CHUNK
    check_good(raw, step=step)
    reply = reply_of(
        raw,
        body_offset=len(STREAM_HEAD),
        framing=Framing.CHUNKED,
        is_streaming=True,
        api=CONVERSATIONS,
    )
    assert json.loads(reply.items)["content"] == 'NaN, he said "Infinity"'


def test_finish_reason_of_the_text_null_is_none() -> None:
    events = [
        event_json(1, [{"index": 0, "delta": {"content": text}, "finish_reason": "null"}])
        for text in ("a", "b")
    ]
    row = record_of(Request(reads=reads_of(stream(*events, finish())))).rows[0]
    assert (row["finish_reason"], row["chunks"]) == (FinishReason.STOP, 2)
    cut = STREAM_HEAD + b"".join(chunk(sse(each)) for each in events) + LAST_CHUNK
    row = record_of(Request(reads=reads_of(cut))).rows[0]
    assert row["error"] == ErrorKind.DISCONNECTED


@pytest.mark.parametrize("calls", [[TOOL_CALL], TOOL_CALL])
def test_arguments_of_a_call_may_be_an_object(calls: object) -> None:
    streamed = record_of(Request(reads=reads_of(stream(delta(tool_calls=calls), finish()))))
    message = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    body = plain(json.dumps(message).encode())
    whole = record_of(Request(reads=reads_of(body)), streaming=False)
    for row in (streamed.rows[0], whole.rows[0]):
        assert row["outcome"] == Outcome.COMPLETED
        assert row["text_bytes"] == len('f{"a":1}')


@pytest.mark.parametrize("odd", [[], 12, "fast", {"draft_n": [1], "speculative_decoding": True}])
def test_members_of_an_unknown_form_are_ignored(odd: object) -> None:
    events = [delta(content="a"), finish(), usage(3, 1)]
    made = [json.loads(each) | {"timings": odd, "metrics": odd} for each in events]
    raw = stream(*(json.dumps(each).encode() for each in made))
    row = record_of(Request(reads=reads_of(raw))).rows[0]
    assert row["outcome"] == Outcome.COMPLETED
    assert (row["usage_prompt_tokens"], row["usage_completion_tokens"]) == (3, 1)
    assert row["spec_drafted_tokens"] == -1


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_ping_in_two_chunks_is_skipped(cut: int) -> None:
    ping = b"event: ping\ndata: x\n\n"
    events = [sse(FIRST), ping[:cut], ping[cut:], sse(SECOND), sse(finish()), sse(usage(3, 2))]
    check_good(STREAM_HEAD + b"".join(map(chunk, [*events, DONE])) + LAST_CHUNK, step=10_000)


def test_ping_that_becomes_an_error_is_an_error() -> None:
    odd = chunk(b'event: ping\nevent: error\ndata: {"error":"boom"}\n\n')
    record = record_of(Request(reads=reads_of(STREAM_HEAD + chunk(sse(FIRST)) + odd + LAST_CHUNK)))
    assert [each.message for each in record.errors] == ["boom"]


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_invalid_numbers_in_unread_members_are_skipped(step: int) -> None:
    check_good(stream(LOGPROBS, LOGPROBS, finish(), usage(3, 2)), step=step)


def test_invalid_number_at_the_start_hides_nothing() -> None:
    events = [
        b'{"id":"x","took":NaN,"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text
        for text in (b"a", b"b")
    ]
    check_good(stream(*events, finish(), usage(3, 2)), step=10_000)


def test_whole_response_may_contain_nan_and_infinity() -> None:
    body = (
        b'{"choices":[{"message":{"content":"a NaN"},"logprobs":[-Infinity],"finish_reason":"stop"'
        b'}],"usage":{"prompt_tokens":"3","completion_tokens":"2","cost":NaN}}'
    )
    row = record_of(Request(reads=reads_of(plain(body))), streaming=False).rows[0]
    assert row["outcome"] == Outcome.COMPLETED
    assert (row["usage_prompt_tokens"], row["usage_completion_tokens"]) == (3, 2)


def test_nan_in_text_is_kept() -> None:
    raw = stream(LOGPROBS)
    at = len(STREAM_HEAD)
    reply = reply_of(
        raw, body_offset=at, framing=Framing.CHUNKED, is_streaming=True, api=CONVERSATIONS
    )
    assert json.loads(reply.items)["content"] == 'NaN "-Infinity'


HALF = b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}'


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("text", [rb"\ud83d", rb"a \uDE00", rb"\ud83d\ud83d\ude00", rb"\\\ud83d"])
def test_half_of_an_emoji_is_a_token(text: bytes, step: int) -> None:
    check_good(stream(HALF % text, HALF % rb"\ude00", finish(), usage(3, 2)), step=step)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"\ud83dx\ude00", "\ufffdx\ufffd"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\N{GRINNING FACE}"),
        (rb"\ud83d\n\u00e9", "\ufffd\n\u00e9"),
        (rb"\\ud83d \ud83d", "\\ud83d \ufffd"),
    ],
)
def test_only_single_surrogates_are_replaced(text: bytes, read: str) -> None:
    body = b'{"choices":[{"message":{"content":"%b"},"finish_reason":"stop"}]}' % text
    assert parse_odd(CHAT.parse_body, body).content == read
    reply = reply_of(
        stream(HALF % text),
        body_offset=len(STREAM_HEAD),
        framing=Framing.CHUNKED,
        is_streaming=True,
        api=CONVERSATIONS,
    )
    assert json.loads(reply.items)["content"] == read


@pytest.mark.parametrize(
    ("stated", "count"),
    [("2", 2), ("2.0", 2), (" 2 ", 2), (2.0, 2), ("two", -1), ("", -1), ("nan", -1), ("inf", -1),
     ("-1", -1), ("9" * 30, -1)],
)  # fmt: skip
def test_counts_as_text_are_counts(stated: object, count: int) -> None:
    tokens = {"prompt_tokens": stated, "completion_tokens": stated}
    details = {"completion_tokens_details": {"reasoning_tokens": stated}}
    found = CHAT.parse_event(json.dumps({"choices": [], "usage": tokens | details}).encode())
    assert counts_of(found) == (count, count)
    assert found.reasoning_tokens == count


def test_every_api_accepts_counts_as_text() -> None:
    two = {"input_tokens": "2", "output_tokens": "2"}
    message = {"content": [], "usage": two | {"cache_read_input_tokens": "3"}}
    found = MESSAGES.parse_body(json.dumps(message).encode())
    assert counts_of(found) == (5, 2)
    found = RESPONSES.parse_body(json.dumps({"output": [], "usage": two}).encode())
    assert counts_of(found) == (2, 2)
    raw = custom_endpoint(Options.model_validate({"url": "http://a", "model": "m", "type": "raw"}))
    found = raw.parse_body(json.dumps({"text": "a", "usage": two}).encode())
    assert counts_of(found) == (2, 2)


@pytest.mark.parametrize("step", [1_000, 10_000_000])
@pytest.mark.parametrize(
    "event",
    [b'{"x":' + DEEP, b'{"a":' * 100_000,
     b'{"choices":[{"index":0,"delta":{"content":"a","x":' + DEEP,
     b'{"choices":[],"x":' + DEEP + b"]" * 100_000 + b"}"],
    ids=["lists", "objects", "in a token", "closed"],
)  # fmt: skip
def test_json_of_too_many_levels_is_one_error(event: bytes, step: int) -> None:
    raw = stream(FIRST, event, finish())
    parts = [raw[at : at + step] for at in range(0, len(raw), step)]
    assembler = assembler_of()
    good = Request(reads=reads_of(stream(FIRST, finish())), request_id=2, seq=2)
    batch = batch_of(Request(reads=reads_of(*parts)), good)
    (parts_of_both,) = assembler.process(batch, worker_rank=0)
    assert parts_of_both.rows["error"].tolist() == [ErrorKind.MALFORMED, ErrorKind.NONE]
    assert parts_of_both.errors[0].message == "JSON of too many levels"


def test_deep_body_and_deep_error_are_one_error() -> None:
    row = record_of(Request(reads=reads_of(plain(DEEP))), streaming=False).rows[0]
    assert row["error"] == ErrorKind.MALFORMED
    raw = STREAM_HEAD + chunk(b"event: error\ndata: " + DEEP + b"\n\n") + LAST_CHUNK
    row = record_of(Request(reads=reads_of(raw))).rows[0]
    assert row["error"] == ErrorKind.SERVER


def fail(*_arguments: object, **_more: object) -> None:
    raise ZeroDivisionError("what nobody thought of")


@pytest.mark.parametrize(
    "method", ["_handle_token", "_check_whole", "_judge_blanks", "_format.take_heads"]
)
def test_any_exception_is_one_error_of_its_request(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    owner = ResponseFormat if method.startswith("_format") else ResponseReader
    monkeypatch.setattr(owner, method.removeprefix("_format."), fail)
    raw = STREAM_HEAD + chunk(sse(delta(content=""))) + chunk(sse(FIRST)) + LAST_CHUNK
    record = record_of(Request(reads=reads_of(raw)))
    assert record.rows["error"].tolist() == [ErrorKind.MALFORMED]
    expected = "the response could not be read: ZeroDivisionError: what nobody thought of"
    assert [each.message for each in record.errors] == [expected]


def test_exception_in_an_error_body_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "said_under", fail)
    raw = plain(b"no", b"500 Oops")
    request = Request(reads=reads_of(raw), outcome=Outcome.ERRORED, error=int(ErrorKind.STATUS))
    record = record_of(request)
    assert record.rows["error"].tolist() == [ErrorKind.MALFORMED]
    assert "what nobody thought of" in record.errors[0].message


def check_good(raw: bytes, *, step: int) -> None:
    """Check for two tokens, three prompt and two completion tokens, however the bytes were read."""
    parts = [raw[at : at + step] for at in range(0, len(raw), step)]
    record = record_of(Request(reads=reads_of(*parts)))
    row = record.rows[0]
    assert ErrorKind(int(row["error"])) is ErrorKind.NONE, record.errors
    assert row["chunks"] == 2
    assert (row["usage_prompt_tokens"], row["usage_completion_tokens"]) == (3, 2)


def counts_of(found: Delta) -> tuple[int, int]:
    return found.prompt_tokens, found.completion_tokens
