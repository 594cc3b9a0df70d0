"""Completions (`/v1/completions`), streamed or not. Events and responses have the same form."""

from collections.abc import Sequence

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    text: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None


class _Response(base.CommonMembers, gc=False):
    choices: list[_Choice] | None = None


def _delta_of(choices: Sequence[_Choice]) -> Delta:
    delta = Delta()
    for choice in choices:
        if choice.text:
            delta.content += choice.text
        reasoning = choice.reasoning_content or choice.reasoning
        if reasoning:
            delta.reasoning += reasoning
        if choice.index or choice.finish_reason:
            base.add_finish(delta, choice.index or 0, choice.finish_reason)
        if choice.text == "" and not choice.finish_reason:
            delta.is_blank = True
    if delta.is_blank and delta.has_output:
        delta.is_blank = False
    return delta


parse = base.choices_parser(msgspec.json.Decoder(_Response).decode, _delta_of)
"""Parses one `text_completion`, whole or an event of a stream. Raises UNREADABLE."""


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the whole body; several texts are sent as a list of prompts."""
    value = base.texts_of(prompt, prompt_key="prompt", api="completions")
    rest = base.finish_body(prompt, options, prompt_key="prompt")
    # A list of numbers is one prompt of token ids.
    is_many = isinstance(value, list) and not isinstance(value[0], int)
    return Rendered(
        body=msgspec.json.encode({"prompt": value} | rest),
        requested_tokens=base.requested_tokens(prompt, rest, prompts=len(value) if is_many else 1),
    )


COMPLETIONS = Endpoint(
    type=EndpointType.COMPLETIONS,
    path="/v1/completions",
    prompt_key="prompt",
    render=render,
    parse_event=parse,
    parse_body=parse,
)
