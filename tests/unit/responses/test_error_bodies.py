"""The body of a failed response explains the error."""

import pytest

from aiperf_svc.core.responses.error_bodies import (
    MESSAGE_CHARACTERS,
    explain,
    hint_for,
    kind_of,
    said_under,
)
from aiperf_svc.domain.outcomes import ErrorKind

REFUSED = b'{"error": {"message": "no such model"}}'
LONG = b'{"error": {"message": "unknown member ignore_eos %s"}}'
EXPECTED = ("text/event-stream", "application/x-ndjson")


def explained(status: int, body: bytes, *, coding: str = "") -> tuple[ErrorKind, str]:
    return explain(status, body, content_type="text/html", content_coding=coding, expected=EXPECTED)


@pytest.mark.parametrize(
    ("body", "coding", "message"),
    [
        (REFUSED, "", "no such model"),
        (b"", "", "status 404"),
        (REFUSED, "gzip", "status 404; the body is compressed, gzip"),
    ],
)
def test_error_status_has_the_bodys_message(body: bytes, coding: str, message: str) -> None:
    assert said_under(404, body, content_coding=coding) == message


def test_hint_is_kept_after_long_message() -> None:
    body = LONG % (b"x" * 2 * MESSAGE_CHARACTERS)
    hint = hint_for(400, body)
    text = said_under(400, body, content_coding="")
    assert hint
    assert text.endswith(hint)
    assert len(text) <= MESSAGE_CHARACTERS


@pytest.mark.parametrize(
    ("status", "body", "coding", "expected"),
    [
        (302, b"elsewhere", "", (ErrorKind.STATUS, "not followed: elsewhere")),
        (302, b"elsewhere", "gzip", (ErrorKind.STATUS, "redirects are not followed")),
        (200, REFUSED, "", (ErrorKind.SERVER, "no such model")),
        (200, REFUSED, "gzip", (ErrorKind.CONTENT_TYPE, "server or in the proxy before it")),
        (
            200,
            b"<h1>hi</h1>",
            "",
            (
                ErrorKind.CONTENT_TYPE,
                "content type text/html, expected text/event-stream or application/x-ndjson: "
                "<h1>hi</h1>",
            ),
        ),
        (200, b"", "", (ErrorKind.CONTENT_TYPE, "or application/x-ndjson")),
    ],
)
def test_unreadable_body_is_explained(
    status: int, body: bytes, coding: str, expected: tuple[ErrorKind, str]
) -> None:
    kind, text = explained(status, body, coding=coding)
    assert kind is expected[0]
    assert text.endswith(expected[1])


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000",  # OpenAI
        "The decoder prompt (length 9) is longer than the maximum model length of 8.",  # vLLM
        "The input (9 tokens) is longer than the model's context length (8 tokens).",  # SGLang
        "request (9412 tokens) exceeds the available context size (8192 tokens)",  # llama.cpp
        "prompt is too long: 210000 tokens > 200000 maximum",  # Anthropic
        "The sum of prompt length (9) and query length (1) should not exceed max_num_tokens (8)",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096",  # TGI
        "The input token count (9) exceeds the maximum number of tokens allowed (8).",  # Gemini
    ],
)
def test_too_long_prompt_has_its_own_error_kind(message: str) -> None:
    assert kind_of(ErrorKind.STATUS, message) is ErrorKind.CONTEXT_OVERFLOW
    assert kind_of(ErrorKind.SERVER, message) is ErrorKind.CONTEXT_OVERFLOW
    assert kind_of(ErrorKind.MALFORMED, message) is ErrorKind.MALFORMED


@pytest.mark.parametrize(
    "message",
    ["max_tokens must be at least 1", "the context was cancelled", "rate limit of tokens"],
)
def test_other_refusals_keep_their_kind(message: str) -> None:
    assert kind_of(ErrorKind.STATUS, message) is ErrorKind.STATUS
