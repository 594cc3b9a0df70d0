"""Finish reasons: the words that servers use for the end of a response, and the code in a record.

OpenAI's API has five words. Inference servers and proxies add their own (vLLM and SGLang `abort`,
TGI `eos_token`, Mistral `model_length`, TensorRT-LLM `timeout`, DeepSeek
`insufficient_system_resource`), so every word is mapped to one of a few codes, and a word that is
not known here is `OTHER`.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class FinishReason(IntEnum):
    """Reason why the generation of a response ended. The numbers are in `records.parquet`; if the
    choices of a response ended in different ways, the highest number counts."""

    NONE = 0
    """The response states none, or is not whole."""
    STOP = 1
    """An end of sequence or a stop string."""
    TOOL_CALLS = 2
    LENGTH = 3
    """The maximum of tokens was reached."""
    OTHER = 4
    """A word that is not known here."""
    CONTENT_FILTER = 5
    """A filter cut the response. The request counts as completed: the server did what it is there
    for, and the times are true."""
    ABORT = 6
    """The server gave up: the request counts as an error."""
    ERROR = 7
    """The server failed: the request counts as an error."""
    NO_CONTENT = 8
    """`STOP` or `LENGTH`, and the response has no content: the model ended it with its first token.
    The request counts as completed, has no time to the first token, and its latency ends with the
    response's last byte."""


FAILURES: Final = frozenset((FinishReason.ABORT, FinishReason.ERROR))
"""Reasons with which a response is an error, whatever content it has."""
ENDS_WITHOUT_CONTENT: Final = frozenset((FinishReason.STOP, FinishReason.LENGTH))
"""Reasons with which a response without any content is complete."""

_WORDS: Final = {
    # As some servers write null in every event but the last.
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
    """The code of a server's word; `NONE` of an empty one and of `null`. Case does not matter."""
    return _BY_WORD.get(word.lower(), FinishReason.OTHER) if word else FinishReason.NONE


def named_reasons(counts: Iterable[int]) -> dict[str, int]:
    """Counts by code as counts by name; without `NONE`, and without the reasons that do not
    occur."""
    named = ((FinishReason(code), int(count)) for code, count in enumerate(counts) if code)
    return {reason.name.lower(): count for reason, count in named if count}
