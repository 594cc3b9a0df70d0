"""Explains response bodies that are not the endpoint's: with an error status, of another content
type, or compressed.

To force an output length, requests contain `ignore_eos` and `min_tokens`, which vLLM, SGLang and
others support. OpenAI, Mistral and other servers that validate bodies against OpenAI's schema
refuse them with status 400 or 422 and a text that names the member; the user gets advice.
"""

import re
from collections.abc import Sequence
from typing import Final

from aiperf_svc.core.endpoints.base import error_message, find_error
from aiperf_svc.domain.foreign_text import CUT, one_line
from aiperf_svc.domain.outcomes import ErrorKind

_REFUSALS: Final = (400, 422)
_NOT_FOUND: Final = (400, 404)
_LACKS_MODEL: Final = re.compile(
    rb"\bmodel\b.{0,200}(?:does not exist|not found)|not_found_error.{0,100}\bmodel\b"
    rb"|model_not_found|invalid model name",
    re.IGNORECASE | re.DOTALL,
)
_OTHER_MODEL: Final = (
    " [ask for a model that the server lists at /v1/models: --model (endpoint.model)]"
)
_HINTS: Final = (
    (
        re.compile(rb"\b(?:ignore_eos|min_tokens)\b"),
        "--osl sends ignore_eos and min_tokens: leave them out with --no-force-output-length "
        "(endpoint.force_output_length: false)",
    ),
    (
        re.compile(rb"\b(?:stream_options|include_usage)\b"),
        "leave stream_options out with endpoint.request_usage: false; output tokens are then only "
        "known with --tokenizer",
    ),
    (
        re.compile(rb"\bresponse_format\b"),
        "leave response_format out with --extra-inputs response_format:null",
    ),
    (
        re.compile(rb"\bmax_completion_tokens\b"),
        "leave max_tokens out with --extra-inputs max_tokens:null and give "
        "--extra-inputs max_completion_tokens:N instead",
    ),
)


_OVERFLOW: Final = re.compile(
    "context_length_exceeded|exceed_context_size|available context size|maximum context length"
    "|model's context length|maximum model length|context window|prompt is too long"
    "|input is too long|should not exceed max_(?:seq_len|input_len|num_tokens)"
    r"|`inputs` (?:tokens|must have less)|maximum number of tokens allowed",
    re.IGNORECASE,
)
"""Responses of OpenAI, vLLM, SGLang, llama.cpp, Anthropic, TensorRT-LLM, TGI and Gemini to a prompt
that exceeds the model's context."""


def kind_of(kind: ErrorKind, message: str) -> ErrorKind:
    is_answer = kind in (ErrorKind.STATUS, ErrorKind.SERVER)
    return ErrorKind.CONTEXT_OVERFLOW if is_answer and _OVERFLOW.search(message) else kind


def hint_for(status: int, body: bytes) -> str:
    """Return the advice to add to the message of a refused request; empty without any."""
    if status in _NOT_FOUND and _LACKS_MODEL.search(body):
        return _OTHER_MODEL
    if status not in _REFUSALS:
        return ""
    found = next((hint for pattern, hint in _HINTS if pattern.search(body)), "")
    return f" [{found}]" if found else ""


MESSAGE_CHARACTERS: Final = 500
"""Maximum characters of an error message."""


def said_under(status: int, body: bytes, *, content_coding: str) -> str:
    if content_coding:
        return f"status {status}; the body is compressed, {content_coding}"
    hint = hint_for(status, body)
    limit = MESSAGE_CHARACTERS - (len(hint) + len(CUT) if hint else 0)
    message = one_line(error_message(body), limit=max(0, limit)) or f"status {status}"
    return message + hint


def explain(
    status: int, body: bytes, *, content_type: str, content_coding: str, expected: Sequence[str]
) -> tuple[ErrorKind, str]:
    """Return the problem of a body that is not parsed as a response, with a status below 400, and
    its message. `expected` are the content types of the endpoint."""
    if status >= 300:
        message = "" if content_coding else error_message(body)
        text = f"status {status}, and redirects are not followed: {message}"
        return ErrorKind.STATUS, text.removesuffix(": ")
    if content_coding:
        return ErrorKind.CONTENT_TYPE, (
            f"the body is compressed (Content-Encoding {content_coding}), which no request asks "
            "for: turn compression off in the server or in the proxy before it"
        )
    if found := find_error(body):
        return ErrorKind.SERVER, found
    text = f"content type {content_type}, expected {' or '.join(expected)}: {error_message(body)}"
    return ErrorKind.CONTENT_TYPE, text.removesuffix(": ")
