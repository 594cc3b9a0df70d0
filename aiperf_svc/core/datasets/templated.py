"""Counts prompts inside the chat template, as the model receives them, and gives synthetic prompts
the requested length there.

The template's own tokens (roles, special tokens, tools, the beginning of the response) are part of
the count. A later turn counts what it adds to the conversation before it, whose own tokens are not
counted, unless its prompt is complete. The reason is that many templates omit the reasoning of
earlier responses, so their tokens there differ from those of the output. Pictures and sounds
have no tokens here.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from aiperf_svc.core.datasets.base import PromptConversation, PromptTurn, TokenCounter
from aiperf_svc.core.datasets.synthetic import repaired
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.endpoints.history import is_chat_tool
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.json_objects import Json

_RESPONSE: Final = "aiperf-svc-response"
_EARLIER: Final = ({"role": "user", "content": "a"}, {"role": "assistant", "content": _RESPONSE})
"""Conversation before a later turn."""


def templated_tokens(
    entries: Sequence[PromptConversation],
    counter: TokenCounter,
    extra_inputs: Mapping[str, Any] = {},
) -> list[int]:
    """Return the tokens of each turn, in order. Each request contains `extra_inputs`."""
    inside = _InTemplate(counter, extra_inputs)
    turns = [
        (turn.prompt, turn.is_whole or turn is entry.turns[0])
        for entry in entries
        for turn in entry.turns
    ]
    before = inside.before
    counts = counter.count_batch(
        [inside.rendered(prompt, is_first=is_first) for prompt, is_first in turns]
    )
    return [
        count if is_first else count - before
        for count, (_, is_first) in zip(counts, turns, strict=True)
    ]


def fitted(
    entries: Sequence[PromptConversation],
    counter: TokenCounter,
    extra_inputs: Mapping[str, Any] = {},
) -> list[PromptConversation]:
    """Return synthetic entries whose turns have `input_tokens` tokens inside the template. Raises
    DatasetError for a length that the template alone exceeds."""
    inside = _InTemplate(counter, extra_inputs)
    return [
        msgspec.structs.replace(
            entry,
            turns=tuple(
                _fitted(turn, inside, is_first=turn is entry.turns[0]) for turn in entry.turns
            ),
        )
        for entry in entries
    ]


def _fitted(turn: PromptTurn, inside: "_InTemplate", *, is_first: bool) -> PromptTurn:
    measure = _OfPrompt(inside, turn.prompt, is_first=is_first)
    want, (text,) = turn.input_tokens, turn.prompt.texts
    over = measure.count(text) - want
    if over > 0:
        # Nearly all words are one token, and the remaining difference is repaired.
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
    """The chat template of a tokenizer, with the parts common to all requests of a run."""

    def __init__(self, counter: TokenCounter, extra_inputs: Mapping[str, Any]) -> None:
        assert counter.template is not None, "a config that asks for a template loads one"
        self.counter, self._template = counter, counter.template
        self._extra_inputs = extra_inputs

    @cached_property
    def before(self) -> int:
        """Tokens of a later turn's text that belong to the conversation before it."""
        _, variables = _settings(self._extra_inputs)
        earlier = self._template(_EARLIER, add_generation_prompt=False, variables=variables)
        return self.counter.count(_from_response(earlier))

    def rendered(self, prompt: Prompt, *, is_first: bool) -> str:
        """Return a prompt as the model receives it; for later turns, from the previous response."""
        messages = [_plain(message) for message in _messages(prompt)]
        tools, variables = _settings({**prompt.body_members, **self._extra_inputs})
        if is_first:
            return self._template(messages, tools=tools, variables=variables)
        whole = self._template([*_EARLIER, *messages], tools=tools, variables=variables)
        return _from_response(whole)


class _OfPrompt:
    """Counts tokens of a prompt's only text inside the template."""

    def __init__(self, inside: _InTemplate, prompt: Prompt, *, is_first: bool) -> None:
        self._inside, self._counter = inside, inside.counter
        self.name, self.template = self._counter.name, self._counter.template
        self._prompt, self._is_first = prompt, is_first
        self._before = 0 if is_first else inside.before

    def count(self, text: str) -> int:
        """Return the tokens of the prompt with this text."""
        prompt = msgspec.structs.replace(self._prompt, texts=(text,))
        rendered = self._inside.rendered(prompt, is_first=self._is_first)
        return self._counter.count(rendered) - self._before

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text alone, for comparisons during the repair."""
        return self._counter.count_batch(texts)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text alone."""
        return self._counter.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._counter.decode(ids)


def _from_response(rendered: str) -> str:
    """Return the text from the earlier response on. The part before it varies: some templates only
    show the reasoning of the last response, even if empty."""
    return rendered[max(0, rendered.find(_RESPONSE)) :]


def _settings(members: Mapping[str, Any]) -> tuple[Sequence[Any] | None, Mapping[str, Any]]:
    """Return the tools and the template variables in a request's body."""
    tools, variables = members.get("tools"), members.get("chat_template_kwargs")
    # Tools of other APIs have other forms, which templates do not support.
    is_known = isinstance(tools, list) and all(map(is_chat_tool, tools))
    return tools if tools and is_known else None, variables if variables else {}


def _messages(prompt: Prompt) -> list[Mapping[str, Any]]:
    if prompt.payload is not None:
        messages = prompt.payload.get("messages") or prompt.payload.get("input")
        found = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
        system = prompt.payload.get("system") or prompt.payload.get("instructions")
        return [{"role": "system", "content": system}, *found] if system else found
    if prompt.messages:
        return list(prompt.messages)
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": prompt.role, "content": "\n".join(prompt.texts)}]


def _plain(message: Any) -> Json:
    """Return a message with its texts joined and the arguments of its calls as objects, the form in
    which vLLM and SGLang pass it to templates."""
    plain: Json = dict(message)
    content = plain.get("content") or ""
    if isinstance(content, list):
        texts = [each.get("text") for each in content if isinstance(each, dict)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    plain["content"] = content
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _plain_call(call: Any) -> Any:
    try:
        function = call["function"]
        arguments = msgspec.json.decode(function["arguments"] or b"{}")
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
