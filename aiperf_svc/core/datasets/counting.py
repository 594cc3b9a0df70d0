"""Counts the input tokens of a prompt: its own text only.

Chat templates, roles, special tokens and the history of a conversation are not counted: the server
counts them in its usage. Text parts of messages count, other parts do not.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.endpoints.base import Prompt

_INSTRUCTIONS = ("system", "instructions")
"""Members of a payload that hold a system prompt, in Anthropic's API and in OpenAI's Responses."""


_INSTRUCTIONS = ("system", "instructions")
"""Members of a payload that hold a system prompt, in Anthropic's API and in OpenAI's Responses."""


def count_inputs(
    prompts: Iterable[Prompt], keys: Iterable[str], counter: TokenCounter
) -> list[int]:
    """Return the tokens of each prompt; `keys` are the members of a payload that hold its
    prompt."""
    texts: list[str] = []
    owners: list[int] = []
    totals: list[int] = []
    for index, prompt in enumerate(prompts):
        totals.append(0)
        for part in _parts(prompt, keys):
            if isinstance(part, str):
                texts.append(part)
                owners.append(index)
            else:
                totals[index] += 1
    for owner, count in zip(owners, counter.count_batch(texts), strict=True):
        totals[owner] += count
    return totals


def _parts(prompt: Prompt, keys: Iterable[str]) -> Iterator[str | int]:
    """Yield the texts, and the token ids of payloads that hold tokens instead of text."""
    if prompt.payload is not None:
        for key in (*_INSTRUCTIONS, *keys):
            yield from _flatten(prompt.payload.get(key))
    else:
        yield from filter(None, [prompt.system])
        yield from prompt.texts
        yield from prompt.passages
        yield from _flatten(list(prompt.messages))


def _flatten(value: Any) -> Iterator[str | int]:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _flatten(item)
    elif isinstance(value, dict):
        # A message holds `content`, a part of one holds `text`.
        yield from _flatten(value.get("content", value.get("text")))
