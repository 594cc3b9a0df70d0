"""Members of a request's body that strict servers refuse, models that they lack, and advice for the
user.

To force an output length, requests carry `ignore_eos` and `min_tokens`, which vLLM, SGLang and
others know. OpenAI, Mistral and whatever checks bodies against OpenAI's schema refuse requests that
have them, with a status of 400 or 422 and a text that names the member.
"""

import re
from typing import Final

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


def hint_for(status: int, body: bytes) -> str:
    """Return the advice to add to the message of a refused request; empty if there is none."""
    if status in _NOT_FOUND and _LACKS_MODEL.search(body):
        return _OTHER_MODEL
    if status not in _REFUSALS:
        return ""
    found = next((hint for pattern, hint in _HINTS if pattern.search(body)), "")
    return f" [{found}]" if found else ""
