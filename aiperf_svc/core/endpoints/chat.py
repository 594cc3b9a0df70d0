"""Chat completions (`/v1/chat/completions`), streamed or not.

A conversation's later requests contain the real responses of its earlier ones, so their bodies
cannot be rendered in advance. They are split at the history: `head` ends inside the `messages`
array, `body` is this turn's message objects joined by commas, and `tail` closes the array and the
body. A history is empty or ends with a comma, so `head + history + body + tail` is always
JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Media, Prompt, Rendered
from aiperf_svc.core.endpoints.history import (
    Call,
    Conversations,
    Defect,
    Reply,
    decode_events,
    decode_valid,
    defects_of,
    is_stated,
)
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.json_objects import Json


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None
    """Text; some servers send an object."""
    input: Any = None
    """The text of a custom tool, which replaces them."""


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None
    custom: _Function | None = None
    """Only for custom tools, in OpenAI's API."""


class _Thought(msgspec.Struct, gc=False):
    text: str | None = None


class _Part(msgspec.Struct, gc=False):
    """Part of a list content. Parts of other kinds (images) have none of these
    members."""

    text: str | None = None
    thinking: str | list[_Thought] | None = None


class _Detail(msgspec.Struct, gc=False):
    """Detail of reasoning. An encrypted detail has no text."""

    text: str | None = None
    summary: str | None = None


class _Audio(msgspec.Struct, gc=False):
    """Sound and its text."""

    data: str | None = None
    transcript: str | None = None


class _Message(msgspec.Struct, gc=False):
    """Message of a whole response (`message`) or of an event (`delta`), which have the same
    members."""

    role: str | None = None
    content: str | list[_Part] | None = None
    """Text, or a list in Mistral's API."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[_Detail] | None = None
    """Reasoning in details: beside one of the above at OpenRouter, alone at MiniMax."""
    refusal: str | None = None
    tool_calls: list[_ToolCall] | _ToolCall | None = None
    """A list; TGI before 2025 streams a single call."""
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


class _Response(base.CommonMembers, gc=False):
    choices: list[_Choice] | None = None


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
            # Servers that transition between the two names send the same text under both.
            reasoning = message.reasoning_content or message.reasoning
            if reasoning:
                delta.reasoning += reasoning
            elif message.reasoning_details:
                details = message.reasoning_details
                delta.reasoning += "".join(each.text or each.summary or "" for each in details)
            if message.tool_calls:
                calls = message.tool_calls
                if isinstance(calls, _ToolCall):
                    calls = [calls]
                delta.tool_calls += "".join(
                    _call_text(call.function or call.custom) for call in calls
                )
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
    if function is None:
        return ""
    stated = function.input if function.arguments is None else function.arguments
    return (function.name or "") + base.arguments_text(stated)


parse = base.choices_parser(msgspec.json.Decoder(_Response).decode, _delta_of)
"""Parses one `chat.completion.chunk` or one `chat.completion`. Raises UNREADABLE."""


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the body as `{"model": …, "messages": [` + messages + `], …}`."""
    body = base.finish_body(prompt, options, prompt_key="messages")
    requested = base.requested_tokens(prompt, body)
    return base.split_body("messages", _messages(prompt), body, requested)


def _messages(prompt: Prompt) -> list[Any]:
    if prompt.payload is not None:
        messages = prompt.payload.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("a payload of the chat API needs a non-empty list `messages`")
        return messages
    if prompt.messages:
        return list(prompt.messages)
    if prompt.is_empty:
        return []
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    content: Any = prompt.texts[0] if prompt.texts else ""
    if len(prompt.texts) > 1 or prompt.media:
        content = [{"type": "text", "text": text} for text in prompt.texts]
        content += map(_media_part, prompt.media)
    return [*system, {"role": prompt.role, "content": content}]


def _media_part(media: Media) -> Json:
    if media.is_image:
        return {"type": "image_url", "image_url": {"url": media.url}}
    kind = media.type.removeprefix("audio/")
    return {"type": "input_audio", "input_audio": {"data": media.data, "format": kind}}


def render_turns(prompts: Sequence[Prompt], options: config.Endpoint) -> list[Rendered]:
    return [render(prompt, options) for prompt in prompts]


def render_messages(messages: Sequence[Mapping[str, Any]]) -> bytes:
    return b",".join(map(msgspec.json.encode, messages))


# --- history -------------------------------------------------------------------------------------


class _CallPart(msgspec.Struct, gc=False):
    """A tool call, or an event's addition to one."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _Function | None = None
    custom: _Function | None = None
    extra_content: Any = None
    """Signature of the preceding thoughts, which Gemini requires for the call."""

    @property
    def sent(self) -> Json:
        """The call as it is sent back."""
        made: Json = {"id": self.id or "", "type": self.type or "function"}
        if self.custom is not None:
            made["custom"] = {"name": self.custom.name or "", "input": self.custom.input or ""}
        else:
            name = self.function.name if self.function else None
            made["function"] = {"name": name or "", "arguments": _arguments(self.function)}
        return made | ({"extra_content": self.extra_content} if self.extra_content else {})


class _Answer(msgspec.Struct, gc=False):
    """Members of an assistant's message in an event that are sent back."""

    content: str | list[Json] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[Json] | None = None
    refusal: str | None = None
    tool_calls: list[_CallPart] | _CallPart | None = None
    audio: _Audio | None = None


class _AnswerChoice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Answer | None = None


class _AnswerEvent(msgspec.Struct, gc=False):
    choices: list[_AnswerChoice] | None = None


class _WholeAnswer(msgspec.Struct, frozen=True):
    """The same members of a whole message, unchanged."""

    content: msgspec.Raw = msgspec.Raw(b"")
    reasoning: msgspec.Raw = msgspec.Raw(b"")
    reasoning_content: msgspec.Raw = msgspec.Raw(b"")
    reasoning_details: msgspec.Raw = msgspec.Raw(b"")
    refusal: msgspec.Raw = msgspec.Raw(b"")
    tool_calls: msgspec.Raw = msgspec.Raw(b"")
    audio: _Audio | None = None


class _WholeChoice(msgspec.Struct, gc=False):
    message: _WholeAnswer = _WholeAnswer()


class _WholeResponse(msgspec.Struct, gc=False):
    choices: list[_WholeChoice] = []


_TEXTS = ("reasoning", "reasoning_content", "refusal")
"""Text members of a message to which events add parts."""
_DETAIL_TEXTS = ("text", "summary")
"""Text members of a reasoning detail, in OpenRouter's API."""
_decode_answers = msgspec.json.Decoder(list[_AnswerEvent]).decode
_decode_whole = msgspec.json.Decoder(_WholeResponse).decode
_decode_calls = msgspec.json.Decoder(list[_CallPart]).decode


def read_body(body: bytes) -> Reply:
    """Return the message of the first choice, with the members that the API accepts back."""
    choices = decode_valid(_decode_whole, body).choices
    message = choices[0].message if choices else _WholeAnswer()
    made: Json = {"role": "assistant"}
    for name in ("reasoning", "reasoning_content", "reasoning_details", "refusal"):
        if is_stated(value := getattr(message, name)):
            made[name] = value
    calls: list[_CallPart] = []
    if is_stated(message.tool_calls):
        made["tool_calls"] = message.tool_calls
        calls = decode_valid(_decode_calls, bytes(message.tool_calls))
    has_content = is_stated(message.content)
    return _reply(made, message.content if has_content else None, message.audio, calls, [])


def read_events(payloads: Sequence[bytes]) -> Reply:
    """Return the sum of the first choice's events as a message. The index identifies the parts of a
    tool call; id and name come once."""
    contents: list[str] = []
    parts: list[Json] = []
    details: list[Json] = []
    texts: dict[str, list[str]] = {}
    calls: dict[int, _CallPart] = {}
    defects: list[Defect] = []
    audio: _Audio | None = None
    for event in decode_events(_decode_answers, payloads):
        for choice in event.choices or ():
            delta = choice.delta
            if delta is None or choice.index:
                continue
            if isinstance(delta.content, str):
                contents.append(delta.content)
            elif delta.content is not None:
                _add_content_parts(parts, delta.content)
            for name in _TEXTS:
                if text := getattr(delta, name):
                    texts.setdefault(name, []).append(text)
            _add_details(details, delta.reasoning_details or ())
            called = delta.tool_calls or []
            if isinstance(called, _CallPart):
                called = [called]
            for part in called:
                _add_call(calls, part, defects)
            if delta.audio is not None:
                transcript = (audio.transcript or "" if audio else "") + (
                    delta.audio.transcript or ""
                )
                audio = _Audio(transcript=transcript)
    made: Json = {"role": "assistant"}
    made |= {name: "".join(found) for name, found in texts.items()}
    if details:
        made["reasoning_details"] = details
    if calls:
        made["tool_calls"] = [call.sent for call in calls.values()]
    content = parts or "".join(contents) or None
    return _reply(made, content, audio, list(calls.values()), defects)


def _reply(
    made: Json,
    content: Any,
    audio: _Audio | None,
    calls: list[_CallPart],
    defects: list[Defect],
) -> Reply:
    """Return a message with its content, which may only be null beside tool calls. The transcript
    of a sound is sent back as text."""
    if content is None and audio is not None:
        content = audio.transcript
    if content is not None or "tool_calls" not in made:
        made["content"] = "" if content is None else content
    else:
        made["content"] = None
    arguments = [base.arguments_text(_arguments(call.function)) for call in calls]
    defects = [*defects, *defects_of([call.id or "" for call in calls], arguments)]
    return Reply(
        msgspec.json.encode(made),
        calls=tuple(Call(call.id or "") for call in calls),
        defects=tuple(dict.fromkeys(defects)),
    )


def _add_content_parts(parts: list[Json], added: list[Json]) -> None:
    """Add the parts of a content, as streamed by Mistral's API, joining texts of the same kind."""
    for part in added:
        kind = part.get("type")
        if parts and kind in ("text", "thinking") and parts[-1].get("type") == kind:
            parts[-1] = parts[-1] | {kind: parts[-1].get(kind, "") + part.get(kind, "")}
        else:
            parts.append(part)


def _add_details(details: list[Json], added: Sequence[Json]) -> None:
    """Add parts of reasoning details. Those with the same type and index form one detail: its texts
    come in parts, and other members, such as a signature, once."""
    for part in added:
        last = details[-1] if details else {}
        if any(last.get(name) != part.get(name) for name in ("type", "index")) or not last:
            details.append(part)
            continue
        texts = {name for name in _DETAIL_TEXTS if isinstance(last.get(name), str)}
        joined = {name: last[name] + (part.get(name) or "") for name in texts}
        stated = {name: value for name, value in part.items() if value is not None}
        details[-1] = last | stated | joined


def _add_call(calls: dict[int, _CallPart], part: _CallPart, defects: list[Defect]) -> None:
    """Add an event's part of a tool call. Without an index, it begins a call if it has an id, and
    otherwise belongs to the last one."""
    index = part.index
    if index is None:
        index = len(calls) if part.id or not calls else len(calls) - 1
    known = calls.get(index)
    if known is None:
        calls[index] = part
        return
    if part.id and known.id and part.id != known.id:
        defects.append(Defect.CHANGED_ID)
    known.id = known.id or part.id
    known.type = known.type or part.type
    known.extra_content = known.extra_content or part.extra_content
    known.function = _joined(known.function, part.function)
    known.custom = _joined(known.custom, part.custom)


def _joined(known: _Function | None, added: _Function | None) -> _Function | None:
    if known is None or added is None:
        return known or added
    known.name = known.name or added.name
    begun, more = _arguments(known), _arguments(added)
    if begun != "" and more != "":
        more = base.arguments_text(begun) + base.arguments_text(more)
    known.arguments = begun if more == "" else more
    known.input = base.arguments_text(known.input) + base.arguments_text(added.input)
    return known


def _arguments(function: _Function | None) -> Any:
    """Return the arguments of a call unchanged; an empty text without any."""
    stated = function.arguments if function is not None else None
    return "" if stated is None else stated


def tool_results(results: Sequence[tuple[Call, bytes]]) -> bytes:
    return b",".join(
        b'{"role":"tool","tool_call_id":%b,"content":%b}' % (msgspec.json.encode(call.id), content)
        for call, content in results
    )


CHAT = Endpoint(
    type=EndpointType.CHAT,
    path="/v1/chat/completions",
    prompt_key="messages",
    render=render,
    parse_event=parse,
    parse_body=parse,
)
CONVERSATIONS = Conversations(
    render=render_turns,
    render_messages=render_messages,
    read_body=read_body,
    read_events=read_events,
    tool_results=tool_results,
)
