"""Counts prompts as the model gets them, inside the chat template, and makes synthetic ones so long
that they have the requested tokens there.

The template's own tokens (roles, special tokens, the beginning of the response) are a part of the
count. Of a later turn, it is what the turn adds to a conversation before it, whose own tokens are
not counted, unless its prompt is complete. Pictures and sounds have no tokens here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiperf_svc.core.datasets.base import ChatTemplate, PromptConversation, PromptTurn, TokenCounter
from aiperf_svc.core.datasets.synthetic import repaired
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.json_objects import Json

_EARLIER: Final = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
"""Conversation before a later turn."""


def templated_tokens(entries: Sequence[PromptConversation], counter: TokenCounter) -> list[int]:
    """Return the tokens of each turn, in order."""
    template = _template_of(counter)
    turns = [
        (turn.prompt, turn.is_whole or turn is entry.turns[0])
        for entry in entries
        for turn in entry.turns
    ]
    before = counter.count(template(_EARLIER, add_generation_prompt=False))
    counts = counter.count_batch(
        [_rendered(prompt, template, is_first=is_first) for prompt, is_first in turns]
    )
    return [
        count if is_first else count - before
        for count, (_, is_first) in zip(counts, turns, strict=True)
    ]


def fitted(
    entries: Sequence[PromptConversation], counter: TokenCounter
) -> list[PromptConversation]:
    """Return synthetic entries whose turns have their `input_tokens` inside the template. Raises
    DatasetError for a length that the template alone exceeds."""
    return [
        msgspec.structs.replace(
            entry,
            turns=tuple(
                _fitted(turn, counter, is_first=turn is entry.turns[0]) for turn in entry.turns
            ),
        )
        for entry in entries
    ]


def _fitted(turn: PromptTurn, counter: TokenCounter, *, is_first: bool) -> PromptTurn:
    measure = _InTemplate(counter, turn.prompt, is_first=is_first)
    want, (text,) = turn.input_tokens, turn.prompt.texts
    over = measure.count(text) - want
    if over > 0:
        # Nearly all words are one token, and what is left of the difference is repaired.
        text = " ".join(text.split(" ")[:-over]) if over < text.count(" ") else ""
    if not text and (alone := measure.count("")) >= want:
        raise DatasetError(
            f"dataset.input_tokens: a prompt of {want:,} tokens, of which the chat template and "
            f"the system prompt alone take {alone:,}; give more, or leave out "
            "tokenizer.apply_chat_template"
        )
    text = repaired(text, want, measure)
    return msgspec.structs.replace(turn, prompt=msgspec.structs.replace(turn.prompt, texts=(text,)))


class _InTemplate:
    """A token counter of the one text of a prompt, inside the template."""

    def __init__(self, counter: TokenCounter, prompt: Prompt, *, is_first: bool) -> None:
        self.name = counter.name
        self.template: ChatTemplate | None = _template_of(counter)
        self._rendered = _template_of(counter)
        self._counter, self._prompt, self._is_first = counter, prompt, is_first
        self._before = 0
        if not is_first:
            self._before = counter.count(self._rendered(_EARLIER, add_generation_prompt=False))

    def count(self, text: str) -> int:
        """Return the tokens of the prompt with this text."""
        prompt = msgspec.structs.replace(self._prompt, texts=(text,))
        rendered = _rendered(prompt, self._rendered, is_first=self._is_first)
        return self._counter.count(rendered) - self._before

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text alone, which is what the repair compares."""
        return self._counter.count_batch(texts)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text alone."""
        return self._counter.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._counter.decode(ids)


def _template_of(counter: TokenCounter) -> ChatTemplate:
    assert counter.template is not None, "a config that asks for a template loads one"
    return counter.template


def _rendered(prompt: Prompt, template: ChatTemplate, *, is_first: bool) -> str:
    messages = [_plain(message) for message in _messages(prompt)]
    tools = prompt.body_members.get("tools") or None
    return template(messages if is_first else [*_EARLIER, *messages], tools=tools)


def _messages(prompt: Prompt) -> list[Mapping[str, Any]]:
    if prompt.payload is not None:
        given = prompt.payload.get("messages") or prompt.payload.get("input")
        found = given if isinstance(given, list) else [{"role": "user", "content": given}]
        system = prompt.payload.get("system") or prompt.payload.get("instructions")
        return [{"role": "system", "content": system}, *found] if system else found
    if prompt.messages:
        return list(prompt.messages)
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": prompt.role, "content": "\n".join(prompt.texts)}]


def _plain(message: Any) -> Json:
    """Return a message with its texts in one, as servers give it to templates that take text."""
    plain: Json = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        texts = [each.get("text") for each in content if isinstance(each, dict)]
        plain["content"] = "\n".join(text for text in texts if isinstance(text, str))
    return plain
