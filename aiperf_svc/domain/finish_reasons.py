"""Finish reasons: the words that servers use for the end of a response, and the code in a record.

OpenAI's API has five words. Inference servers and proxies add their own (vLLM and SGLang `abort`,
TGI `eos_token`, Mistral `model_length`, TensorRT-LLM `timeout`, DeepSeek
`insufficient_system_resource`), so every word is mapped to one of a few codes, and an unknown word
to `OTHER`.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class FinishReason(IntEnum):
    """Reason why the generation of a response ended. The numbers are in `records.parquet`; if the
    choices of a response ended in different ways, the highest number counts."""

    NONE = 0
    """The response states none, or is incomplete."""
    STOP = 1
    """An end of sequence or a stop string."""
    TOOL_CALLS = 2
    LENGTH = 3
    """The token limit was reached."""
    OTHER = 4
    """An unknown word."""
    CONTENT_FILTER = 5
    """A filter cut the response. The request counts as completed: the server worked as intended,
    and the times are valid."""
    ABORT = 6
    """The server gave up: the request counts as an error."""
    ERROR = 7
    """The server failed: the request counts as an error."""
    NO_CONTENT = 8
    """`STOP` or `LENGTH`, and the response has no content: the model ended it with its first token.
    The request counts as completed, has no time to the first token, and its latency ends with the
    response's last byte."""


FAILURES: Final = frozenset((FinishReason.ABORT, FinishReason.ERROR))
"""Reasons that make a response an error, whatever its content."""
ENDS_WITHOUT_CONTENT: Final = frozenset((FinishReason.STOP, FinishReason.LENGTH))
"""Reasons that make a response without content complete."""

_WORDS: Final = {
    # Some servers write null in every event but the last.
    FinishReason.NONE: ("null",),
    FinishReason.STOP: (
        "stop",
        "eos",
        "eos_token",
        "end_turn",
        "stop_sequence",
        "stop_str",
        "completed",
    ),
    FinishReason.TOOL_CALLS: ("tool_calls", "function_call", "tool_use"),
    FinishReason.LENGTH: (
        *("length", "max_tokens", "max_output_tokens", "model_length"),
        "model_context_window_exceeded",
    ),
    FinishReason.CONTENT_FILTER: ("content_filter", "safety", "refusal"),
    FinishReason.ABORT: (
        *("abort", "aborted", "cancelled", "canceled", "timeout"),
        "insufficient_system_resource",
    ),
    FinishReason.ERROR: ("error", "failed"),
}
_BY_WORD: Final = {word: reason for reason, words in _WORDS.items() for word in words}


def finish_reason_of(word: str) -> FinishReason:
    """Return the code of a server's word, ignoring case; `NONE` for an empty word and `null`."""
    return _BY_WORD.get(word.lower(), FinishReason.OTHER) if word else FinishReason.NONE


def named_reasons(counts: Iterable[int]) -> dict[str, int]:
    """Map counts by code to counts by name, without `NONE` and without reasons that do not
    occur."""
    named = ((FinishReason(code), int(count)) for code, count in enumerate(counts) if code)
    return {reason.name.lower(): count for reason, count in named if count}
