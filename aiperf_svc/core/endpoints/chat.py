"""Chat completions (`/v1/chat/completions`), streamed or not.

A conversation's later requests contain the real responses of its earlier ones, so their bodies
cannot be rendered in advance. They are split where the history goes: `head` ends inside the
`messages` array, `body` is this turn's message objects joined by commas, `tail` closes the array
and the body. A history is empty or ends with a comma, so that `head + history + body + tail` is
always JSON.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Media, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Thought(msgspec.Struct, gc=False):
    text: str | None = None


class _Part(msgspec.Struct, gc=False):
    """Part of a content that is a list; a part of another kind (an image) has none of these
    members."""

    text: str | None = None
    thinking: str | list[_Thought] | None = None


class _Audio(msgspec.Struct, gc=False):
    """Sound, and its text."""

    data: str | None = None
    transcript: str | None = None


class _Message(msgspec.Struct, gc=False):
    """Message of a whole response (`message`) or of an event (`delta`), which have the same
    members."""

    role: str | None = None
    content: str | list[_Part] | None = None
    """Text, or a list in the API of Mistral."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    """Older form of `tool_calls`, for one call."""
    audio: _Audio | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Message | None = None
    """Message of an event."""
    message: _Message | None = None
    """Message of a whole response."""
    finish_reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: base.Usage | None = None
    timings: base.Timings | None = None
    metrics: base.ServerMetrics | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Response).decode


def parse(data: bytes) -> Delta:
    """Parse one `chat.completion.chunk` or one `chat.completion`. It is one function because it
    runs once per token."""
    try:
        response = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise base.malformed(error, data) from None
    delta = _delta_of(response.choices or ())
    if response.choices is None and response.usage is None and not response.error:
        delta.error = base.error_instead_of("choices, usage", data)
    elif response.choices and len(response.choices) > 1:
        delta.parts = base.parts_of(_delta_of((choice,)) for choice in response.choices)
    if response.usage is not None or response.timings is not None or response.error:
        base.add_usage_and_error(delta, response)
    return delta


def _delta_of(choices: Sequence[_Choice]) -> Delta:
    delta = Delta()
    for choice in choices:
        message = choice.delta or choice.message
        if message is not None:
            content = message.content
            if isinstance(content, list):
                _add_parts(delta, content)
            elif content:
                delta.content += content
            elif message.refusal:
                delta.content += message.refusal
            # Servers in transition between the two names send the same text under both.
            reasoning = message.reasoning_content or message.reasoning
            if reasoning:
                delta.reasoning += reasoning
            if message.tool_calls:
                delta.tool_calls += "".join(_call_text(c.function) for c in message.tool_calls)
            if message.function_call:
                delta.tool_calls += _call_text(message.function_call)
            if message.audio:
                _add_audio(delta, message.audio)
            if content == "" and not choice.finish_reason:
                delta.is_blank, delta.names_role = True, message.role is not None
        if choice.index or choice.finish_reason:
            base.add_finish(delta, choice.index or 0, choice.finish_reason)
    if delta.is_blank and delta.has_output:
        delta.is_blank = delta.names_role = False
    return delta


def _add_parts(delta: Delta, parts: list[_Part]) -> None:
    for part in parts:
        delta.content += part.text or ""
        thinking = part.thinking
        if isinstance(thinking, list):
            thinking = "".join(thought.text or "" for thought in thinking)
        delta.reasoning += thinking or ""


def _add_audio(delta: Delta, audio: _Audio) -> None:
    delta.content += audio.transcript or ""
    if audio.data:
        delta.items += 1
        delta.item_bytes += len(audio.data)


def _call_text(function: _Function | None) -> str:
    return (function.name or "") + (function.arguments or "") if function is not None else ""


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the body as `{"model": …, "messages": [` + messages + `], …}`."""
    messages = _messages(prompt)
    body = base.finish_body(prompt, options, prompt_key="messages")
    opening = {key: body.pop(key) for key in ("model",) if key in body}
    start, rest = msgspec.json.encode(opening)[:-1], msgspec.json.encode(body)[1:]
    return Rendered(
        head=start + (b"," if opening else b"") + b'"messages":[',
        body=b",".join(msgspec.json.encode(message) for message in messages),
        tail=b"]" + (b"," if body else b"") + rest,
        requested_tokens=base.requested_tokens(prompt, body),
    )


def _messages(prompt: Prompt) -> list[Any]:
    if prompt.payload is not None:
        messages = prompt.payload.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("a payload of the chat API needs a non-empty list `messages`")
        return messages
    if prompt.messages:
        return list(prompt.messages)
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    content: Any = prompt.texts[0] if prompt.texts else ""
    if len(prompt.texts) > 1 or prompt.media:
        content = [{"type": "text", "text": text} for text in prompt.texts]
        content += map(_media_part, prompt.media)
    return [*system, {"role": prompt.role, "content": content}]


def _media_part(media: Media) -> dict[str, Any]:
    if media.is_image:
        return {"type": "image_url", "image_url": {"url": media.url}}
    kind = media.type.removeprefix("audio/")
    return {"type": "input_audio", "input_audio": {"data": media.data, "format": kind}}


def append_history(history: bytes, turn_messages: bytes, response: str) -> bytes:
    """Return the history of the next turn: the previous history, this turn's messages, and the
    response.

    `history` is b"" or ends with a comma, `turn_messages` has neither a leading nor a trailing one,
    and the result ends with one.
    """
    return b"%b%b,%b," % (history, turn_messages, assistant_message(response))


def assistant_message(text: str) -> bytes:
    """Return a response as a message object in JSON, without commas around it."""
    return b'{"role":"assistant","content":%b}' % msgspec.json.encode(text)


CHAT = Endpoint(
    type=EndpointType.CHAT,
    path="/v1/chat/completions",
    prompt_key="messages",
    render=render,
    parse_event=parse,
    parse_body=parse,
)
