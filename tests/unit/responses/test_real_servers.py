"""Recorded responses of real servers, unchanged except for ids, and their records."""

import pytest

from aiperf_svc.core.records.assembly import RecordAssembler
from aiperf_svc.core.responses import reader as response_reader
from aiperf_svc.core.responses.fast_events import interpreted_take_tokens
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Rows
from tests.support.raw_batches import (
    LAST_CHUNK,
    STREAM_HEAD,
    Request,
    assembler_of,
    batch_of,
    chunk,
    config_of,
    plain,
    reads_of,
    record_of,
    sse,
    stamp_of,
    stream,
)


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with both ways of reading."""
    if request.param == "interpreted":
        monkeypatch.setattr(response_reader, "take_tokens", interpreted_take_tokens)


def row_of(*parts: bytes, streaming: bool = True) -> Rows:
    row: Rows = record_of(Request(reads=reads_of(*parts)), streaming=streaming).rows[0]
    return row


def vllm(choice: bytes, usage: bytes = b"") -> bytes:
    return (
        b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":['
        + choice
        + b"]"
        + usage
        + b"}"
    )


def token(text: bytes, index: int = 0, reason: bytes = b"null") -> bytes:
    return vllm(
        b'{"index":%d,"delta":{"content":"%b"},"logprobs":null,"finish_reason":%b}'
        % (index, text, reason)
    )


ROLE = vllm(b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}')


# --- finish reasons ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "code", "kind"),
    [
        (b"stop", FinishReason.STOP, ErrorKind.NONE),
        (b"length", FinishReason.LENGTH, ErrorKind.NONE),
        (b"tool_calls", FinishReason.TOOL_CALLS, ErrorKind.NONE),
        (b"content_filter", FinishReason.CONTENT_FILTER, ErrorKind.NONE),
        (b"eos_token", FinishReason.STOP, ErrorKind.NONE),
        (b"repetition", FinishReason.OTHER, ErrorKind.NONE),
        (b"abort", FinishReason.ABORT, ErrorKind.ABORTED),
        (b"ABORT", FinishReason.ABORT, ErrorKind.ABORTED),
        (b"error", FinishReason.ERROR, ErrorKind.ABORTED),
        (b"insufficient_system_resource", FinishReason.ABORT, ErrorKind.ABORTED),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_finish_reason_is_kept_and_failures_are_errors(
    word: bytes, code: FinishReason, kind: ErrorKind, streaming: bool
) -> None:
    raw = stream(ROLE, token(b"a"), token(b"", reason=b'"%b"' % word))
    if not streaming:
        raw = plain(
            b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"%b"}]}' % word
        )
    record = record_of(Request(reads=reads_of(raw)), streaming=streaming)
    row = record.rows[0]
    assert (row["finish_reason"], row["error"]) == (code, kind)
    assert row["outcome"] == (Outcome.ERRORED if kind else Outcome.COMPLETED)
    if kind:
        assert repr(word.decode()) in record.errors[0].message


def test_missing_or_empty_finish_reason_is_none() -> None:
    for events in ([token(b"a")], [token(b"a", reason=b'""')]):
        row = row_of(stream(*events))
        assert (row["finish_reason"], row["error"]) == (FinishReason.NONE, ErrorKind.NONE)


# --- several choices -----------------------------------------------------------------------------


def cut(*events: bytes) -> bytes:
    """Return a stream that ends correctly without [DONE]."""
    return STREAM_HEAD + b"".join(chunk(sse(data)) for data in events) + LAST_CHUNK


SEVERAL = [token(b"a"), token(b"b", 1), token(b"c"), token(b"d", 1), token(b"e", 1), token(b"f")]


def test_first_finished_choice_does_not_end_the_stream() -> None:
    first, second = token(b"", 0, b'"stop"'), token(b"", 1, b'"length"')
    row = row_of(cut(*SEVERAL, first, token(b"g", 1)))
    assert row["error"] == ErrorKind.DISCONNECTED
    row = row_of(cut(*SEVERAL, first, token(b"g", 1), second))
    assert row["error"] == ErrorKind.NONE
    assert row["finish_reason"] == FinishReason.LENGTH
    assert row["chunks"] == 7
    assert row_of(stream(*SEVERAL, first))["error"] == ErrorKind.NONE, "[DONE] ends all"


def test_late_choice_belongs_to_the_stream() -> None:
    events = [token(b"a"), token(b"", 0, b'"stop"'), token(b"b", 1)]
    assert row_of(cut(*events))["error"] == ErrorKind.DISCONNECTED
    whole = row_of(cut(*events, token(b"", 1, b'"stop"')))
    assert (whole["error"], whole["chunks"]) == (ErrorKind.NONE, 2)


def test_all_requested_choices_must_end() -> None:
    config = config_of()
    endpoint = config.endpoint.model_copy(update={"extra_inputs": {"n": 2}})
    assembler = RecordAssembler(config.model_copy(update={"endpoint": endpoint}))
    response = cut(token(b"a"), token(b"", 0, b'"stop"'))
    (made,) = assembler.process(batch_of(Request(reads=reads_of(response))), worker_rank=0)
    assert made.rows["error"] == [ErrorKind.DISCONNECTED]


def test_the_worst_end_of_several_choices_counts() -> None:
    ends = token(b"", 0, b'"abort"'), token(b"", 1, b'"stop"')
    for order in (ends, ends[::-1]):
        row = row_of(stream(*SEVERAL, *order))
        assert (row["finish_reason"], row["error"]) == (FinishReason.ABORT, ErrorKind.ABORTED)


@pytest.mark.parametrize("index", [-1, 10**30, 127, 128])
def test_impossible_choice_index_is_no_error(index: int) -> None:
    row = row_of(stream(token(b"a", index), token(b"", index, b'"stop"')))
    assert (row["error"], row["chunks"]) == (ErrorKind.NONE, 1)


# --- no content ----------------------------------------------------------------------------------


def test_stream_ended_by_its_first_token_is_complete() -> None:
    """As vLLM responds to a prompt for which the model generates nothing."""
    usage = vllm(b"", b',"usage":{"prompt_tokens":11,"total_tokens":12,"completion_tokens":1}')
    parts = stream(ROLE, token(b"", reason=b'"stop"'), usage)
    row = row_of(parts[:50], parts[50:])
    assert (row["outcome"], row["error"]) == (Outcome.COMPLETED, ErrorKind.NONE)
    assert row["finish_reason"] == FinishReason.NO_CONTENT
    assert (row["first_token_wall_ns"], row["last_token_wall_ns"], row["chunks"]) == (0, 0, 0)
    assert (row["end_wall_ns"], row["output_tokens"]) == (stamp_of(1), 1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"index":0,"message":{"role":"assistant","content":null},'
        b'"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}',
        b'{"choices":[{"index":0,"message":{"content":""},"finish_reason":"length"}],"usage":'
        b'{"completion_tokens":64,"completion_tokens_details":{"reasoning_tokens":64}}}',
    ],
    ids=["ended by its first token", "hidden reasoning"],
)
def test_whole_response_may_have_no_content(body: bytes) -> None:
    row = row_of(plain(body), streaming=False)
    assert (row["error"], row["finish_reason"]) == (ErrorKind.NONE, FinishReason.NO_CONTENT)


@pytest.mark.parametrize("word", [b"content_filter", b"tool_calls", b"odd"])
def test_response_without_content_is_empty_with_a_reason(word: bytes) -> None:
    record = record_of(Request(reads=reads_of(stream(ROLE, token(b"", reason=b'"%b"' % word)))))
    assert record.rows["error"] == [ErrorKind.EMPTY]
    assert f"finish reason {word.decode()!r}" in record.errors[0].message


def test_counted_but_hidden_tokens_do_not_end_it() -> None:
    usage = vllm(b"", b',"usage":{"prompt_tokens":11,"completion_tokens":40}')
    assert row_of(stream(ROLE, token(b"", reason=b'"stop"'), usage))["error"] == ErrorKind.EMPTY


# --- other shapes --------------------------------------------------------------------------------


def test_mistral_s_content_is_a_list_of_parts() -> None:
    """As Magistral responds: thinking, then text."""
    thinking = (
        b'{"index":0,"delta":{"content":[{"type":"thinking","thinking":'
        b'[{"type":"text","text":"hm"}]}]},"finish_reason":null}'
    )
    text = b'{"index":0,"delta":{"content":[{"type":"text","text":"Paris"}]},"finish_reason":null}'
    raw = stream(vllm(thinking), vllm(text), token(b".", reason=b'"stop"'))
    row = row_of(raw[:300], raw[300:])
    assert (row["error"], row["chunks"]) == (ErrorKind.NONE, 3)
    assert row["first_output_wall_ns"] >= row["first_token_wall_ns"] > 0
    body = b'{"choices":[{"message":{"content":[{"type":"text","text":"Paris"}]}}]}'
    assert row_of(plain(body), streaming=False)["error"] == ErrorKind.NONE


def test_a_legacy_function_call_is_output() -> None:
    name = b'{"index":0,"delta":{"function_call":{"name":"weather","arguments":""}}}'
    arguments = b'{"index":0,"delta":{"function_call":{"arguments":"{}"}}}'
    end = b'{"index":0,"delta":{},"finish_reason":"function_call"}'
    row = row_of(stream(vllm(name), vllm(arguments), vllm(end)))
    assert (row["error"], row["chunks"]) == (ErrorKind.NONE, 2)
    assert row["finish_reason"] == FinishReason.TOOL_CALLS
    body = b'{"choices":[{"message":{"content":null,"function_call":{"name":"f"}}}]}'
    assert row_of(plain(body), streaming=False)["error"] == ErrorKind.NONE


@pytest.mark.parametrize(
    ("stated", "prompt", "completion"),
    [
        (b'{"prompt_tokens":12.0,"completion_tokens":34.0}', 12, 34),
        (b'{"prompt_tokens":12}', 12, 7),
        (b'{"completion_tokens":null,"prompt_tokens":12}', 12, 7),
        (b'{"completion_tokens":8}', 3, 8),
        (b'{"prompt_tokens":-4,"completion_tokens":1e30}', 3, 7),
    ],
)
def test_last_stated_usage_count_is_used(stated: bytes, prompt: int, completion: int) -> None:
    first = vllm(b"", b',"usage":{"prompt_tokens":3,"completion_tokens":7}')
    last = vllm(b"", b',"usage":' + stated)
    row = row_of(stream(token(b"a"), first, token(b"", reason=b'"stop"'), last))
    assert row["error"] == ErrorKind.NONE
    assert (row["usage_prompt_tokens"], row["usage_completion_tokens"]) == (prompt, completion)


@pytest.mark.parametrize("coding", [b"gzip", b"BR", b"zstd", b"deflate, gzip"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_compressed_response_is_named(coding: bytes, streaming: bool) -> None:
    kind = b"text/event-stream" if streaming else b"application/json"
    raw = plain(b"\x1f\x8b\x08\x00garbage", content_type=kind)
    raw = raw.replace(b"\r\n\r\n", b"\r\nContent-Encoding: " + coding + b"\r\n\r\n", 1)
    record = record_of(Request(reads=reads_of(raw)), streaming=streaming)
    assert record.rows["error"] == [ErrorKind.CONTENT_TYPE]
    assert f"Content-Encoding {coding.decode().lower()}" in record.errors[0].message


def test_a_compressed_error_is_not_quoted() -> None:
    raw = plain(b"\x1f\x8b\x08\x00garbage", status=b"503 Busy")
    raw = raw.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1)
    request = Request(reads=reads_of(raw), outcome=Outcome.ERRORED, error=ErrorKind.STATUS)
    (sample,) = record_of(request).errors
    assert sample.message == "status 503; the body is compressed, gzip"


def test_identity_encoding_is_accepted() -> None:
    raw = stream(token(b"a")).replace(b"\r\n\r\n", b"\r\nContent-Encoding: identity\r\n\r\n", 1)
    assert row_of(raw)["error"] == ErrorKind.NONE


@pytest.mark.parametrize("size", [b"%08x", b"%040x", b"%X", b"%x;n=v", b'%x;a="b;c"', b"%x "])
@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"000000\r\n\r\n", b"0;x\r\nA: b\r\nC: d\r\n\r\n"])
def test_all_legal_chunked_framings_are_equal(size: bytes, end: bytes) -> None:
    events = [ROLE, token(b"a"), token(b"b"), token(b"c"), token(b"", reason=b'"stop"')]
    framed = b"".join(size % len(event) + b"\r\n" + event + b"\r\n" for event in map(sse, events))
    row = row_of(STREAM_HEAD + framed + end)
    assert (row["error"], row["chunks"]) == (ErrorKind.NONE, 3)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "remedy"),
    [
        (
            b"400 Bad Request",
            b'{"error":{"message":"Unrecognized request arguments supplied: ignore_eos, '
            b'min_tokens","type":"invalid_request_error","param":null,"code":null}}',
            "--no-force-output-length",
        ),
        (
            b"422 Unprocessable Entity",
            b'{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body",'
            b'"ignore_eos"],"msg":"Extra inputs are not permitted","input":true}]}}',
            "--no-force-output-length",
        ),
        (
            b"400 Bad Request",
            b'{"error":{"message":"Unsupported parameter: \'max_tokens\' is not supported with this'
            b' model. Use \'max_completion_tokens\' instead.","param":"max_tokens"}}',
            "max_completion_tokens:N",
        ),
        (
            b"400 Bad Request",
            b'{"error":{"message":"Unknown parameter: stream_options.' + b"x" * 600 + b'"}}',
            "endpoint.request_usage: false",
        ),
    ],
)
def test_refused_member_has_a_remedy(status: bytes, body: bytes, remedy: str) -> None:
    raw = plain(body, status=status)
    request = Request(reads=reads_of(raw), outcome=Outcome.ERRORED, error=ErrorKind.STATUS)
    batch = batch_of(request)
    (made,) = assembler_of().process(batch, worker_rank=0)
    (sample,) = made.errors
    assert remedy in sample.message
    assert len(sample.message) <= 500


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            b"404 Not Found",
            b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError",'
            b'"param":"model","code":404}}',
        ),
        (
            b"404 Not Found",
            b'{"error":{"message":"model \\"x\\" not found, try pulling it first",'
            b'"type":"not_found_error","param":null,"code":null}}',
        ),
        (
            b"404 Not Found",
            b'{"type":"error","error":{"type":"not_found_error","message":"model: x"}}',
        ),
        (
            b"400 Bad Request",
            b'{"error":{"message":"/chat/completions: Invalid model name passed in model=x"}}',
        ),
    ],
    ids=["vLLM", "Ollama", "Anthropic", "LiteLLM"],
)
def test_missing_model_has_a_remedy(status: bytes, body: bytes) -> None:
    raw = plain(body, status=status)
    request = Request(reads=reads_of(raw), outcome=Outcome.ERRORED, error=ErrorKind.STATUS)
    (sample,) = record_of(request).errors
    assert sample.message.endswith("lists at /v1/models: --model (endpoint.model)]")


def test_other_refusals_have_no_hint() -> None:
    for status, body in (
        (b"400 Bad Request", b'{"error":"no such model"}'),
        (b"404 Not Found", b'{"error":"no such page"}'),
        (b"500 Oops", b'{"error":"ignore_eos broke"}'),
    ):
        request = Request(
            reads=reads_of(plain(body, status=status)),
            outcome=Outcome.ERRORED,
            error=ErrorKind.STATUS,
        )
        (sample,) = record_of(request).errors
        assert "[" not in sample.message
