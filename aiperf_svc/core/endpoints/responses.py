"""Responses (`/v1/responses`), OpenAI's API with typed events, streamed or not.

Every event names its type. A stream ends with the event that contains the whole response including
its usage; there is no `[DONE]`. An event without the main member of its type is malformed.
Otherwise its beginning would look meaningless to the cache of events
(`core.responses.event_cache`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Prompt, Rendered
from aiperf_svc.core.endpoints.history import (
    Call,
    Conversations,
    Reply,
    check_message,
    decode_events,
    decode_valid,
    defects_of,
    is_chat_tool,
)
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.json_objects import Json

_CONTENT: Final = frozenset(
    ("response.output_text.delta", "response.refusal.delta", "response.audio.transcript.delta")
)
_REASONING: Final = "response.reasoning_text.delta"
_SUMMARY: Final = "response.reasoning_summary_text.delta"
_AUDIO: Final = "response.audio.delta"
_TOOL_CALLS: Final = frozenset(
    (
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.mcp_call_arguments.delta",
        "response.code_interpreter_call_code.delta",
    )
)
_ENDINGS: Final = frozenset(("response.completed", "response.incomplete", "response.failed"))


class _Details(msgspec.Struct, gc=False):
    reasoning_tokens: base.Count = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: base.Count = None
    input_tokens_details: base.PromptDetails | None = None
    output_tokens: base.Count = None
    output_tokens_details: _Details | None = None
    total_tokens: base.Count = None


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct, gc=False):
    """Item of the output: a message, reasoning, or a tool call."""

    type: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    """Summary of reasoning, which replaces its text."""
    name: str | None = None
    arguments: Any = None
    input: str | None = None
    """Arguments of a custom tool."""


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Outcome(msgspec.Struct, gc=False):
    """A response without its output."""

    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None
    error: Any = None


class _Response(_Outcome, gc=False):
    output: list[_Item] | None = None


class _Ending(msgspec.Struct, gc=False):
    """Event with a whole response, whose output came before."""

    response: _Outcome


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None
    item: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_ending = msgspec.json.Decoder(_Ending).decode
_decode_body = msgspec.json.Decoder(_Response).decode


def parse_event(data: bytes) -> Delta:
    """Parse one event of a stream. Types without output, usage or an end yield an empty Delta."""
    event = _decode_event(data)
    kind = event.type
    if kind in _ENDINGS:
        return _ended(_decode_ending(data).response, kind.removeprefix("response."))
    delta = Delta()
    if kind in _CONTENT:
        delta.content = _text(event.delta, "delta", data)
    elif kind in (_REASONING, _SUMMARY):
        delta.reasoning = _text(event.delta, "delta", data)
        delta.is_summary = kind == _SUMMARY
    elif kind == _AUDIO:
        delta.items, delta.item_bytes = 1, len(_text(event.delta, "delta", data))
    elif kind in _TOOL_CALLS:
        delta.tool_calls = _text(event.delta, "delta", data)
    elif kind == "response.output_item.added":
        if not isinstance(event.item, dict):
            raise base.malformed(ValueError("an item event without an item"), data)
        if str(event.item.get("type", "")).endswith("_call"):
            delta.tool_calls = _text(event.item.get("name") or "", "name", data)
    elif kind == "error" or not kind:
        delta.error = base.error_instead_of("type", data)
    elif not kind.startswith("response."):
        delta.error = base.find_error(data)
    return delta


def _text(value: object, member: str, data: bytes) -> str:
    if not isinstance(value, str):
        raise base.malformed(ValueError(f"{member} is not text"), data)
    return value


def parse_body(body: bytes) -> Delta:
    response = _decode_body(body)
    if response.output is None and not response.error:
        return Delta(error=base.error_instead_of("output", body))
    delta = _ended(response, "")
    for item in response.output or ():
        parts = item.content or ()
        if item.type == "reasoning":
            shown = parts or item.summary or ()
            delta.reasoning += "".join(part.text or "" for part in shown)
            delta.is_summary = not parts
        else:
            delta.content += "".join(part.text or part.refusal or "" for part in parts)
            delta.tool_calls += (item.name or "") + (
                base.arguments_text(item.arguments) or item.input or ""
            )
    return delta


def _ended(response: _Outcome, status: str) -> Delta:
    """Return the usage, end and error of a response; `status` is the default for its status."""
    delta = Delta()
    usage = response.usage
    if usage is not None:
        delta.prompt_tokens = base.count_of(usage.input_tokens)
        if usage.input_tokens_details is not None:
            delta.cached_tokens = base.count_of(usage.input_tokens_details.cached_tokens)
            delta.cache_write_tokens = base.count_of(usage.input_tokens_details.cache_write_tokens)
        delta.completion_tokens = base.count_of(usage.output_tokens)
        output = usage.output_tokens_details
        stated = None if output is None else output.reasoning_tokens
        base.add_reasoning_tokens(delta, stated, usage.total_tokens)
    if response.error:
        delta.error = base.error_text(response.error)
    details = response.incomplete_details
    base.add_finish(delta, 0, (details and details.reason) or response.status or status)
    return delta


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the whole body: one text as a string, anything else as a list of messages."""
    rest = _rest(prompt, options)
    return Rendered(
        body=msgspec.json.encode({"input": _input(prompt)} | rest),
        requested_tokens=base.requested_tokens(prompt, rest),
    )


def _rest(prompt: Prompt, options: config.Endpoint) -> Json:
    return base.finish_body(
        prompt,
        options,
        prompt_key="input",
        length_key="max_output_tokens",
        has_usage_option=False,
        render_tools=render_tools,
    )


def _input(prompt: Prompt) -> str | list[Any]:
    if prompt.payload is not None:
        value = prompt.payload.get("input")
        if not isinstance(value, str | list) or not value:
            raise ValueError("a payload of the responses API needs `input`")
        return value
    if prompt.is_empty:
        return []
    if prompt.messages:
        return [item for message in prompt.messages for item in _items_of(message)]
    is_text = len(prompt.texts) == 1 and not prompt.media and not prompt.system
    if is_text and prompt.role == "user":
        return prompt.texts[0]
    parts: list[Any] = [{"type": "text", "text": text} for text in prompt.texts]
    parts += [{"type": "image_url", "image_url": media.url} for media in prompt.media]
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, *_items_of({"role": prompt.role, "content": parts})]


def render_messages(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Convert messages of the chat API to items of this API."""
    items = [item for message in messages for item in _items_of(message)]
    return b",".join(map(msgspec.json.encode, items))


def render_tools(tools: Sequence[Any]) -> list[Any]:
    """Convert tool definitions of the chat API to this API."""
    return [
        {"type": "function", **tool["function"]} if is_chat_tool(tool) else tool for tool in tools
    ]


def _items_of(message: Mapping[str, Any]) -> list[Json]:
    """Convert a message of the chat API to items. Tool calls and their results are separate items.
    Reasoning, which this API only accepts with an id from the server, is dropped. Raises
    ValueError."""
    check_message(message, EndpointType.RESPONSES)
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list):
        content = _in_one(content) if role == "assistant" else list(map(_part, content))
    if role == "tool":
        call = message.get("tool_call_id")
        return [{"type": "function_call_output", "call_id": call, "output": content}]
    if role != "assistant":
        return [{"role": role, "content": content}]
    items: list[Json] = [{"role": role, "content": content}] if content else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        items.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    return items


def _in_one(parts: list[Any]) -> Any:
    """Join the parts of an assistant's content if all are texts: vLLM accepts parts only with the
    id and the status of one of its own responses."""
    texts = [part.get("text", part.get("refusal")) for part in parts if isinstance(part, Mapping)]
    is_text = len(texts) == len(parts) and all(isinstance(text, str) for text in texts)
    return "\n".join(texts) if is_text else parts


def _part(part: Any) -> Any:
    """Convert a content part of the chat API to this API."""
    if not isinstance(part, Mapping) or part.get("type") not in ("text", "image_url"):
        return part
    if part["type"] == "text":
        return {**part, "type": "input_text"}
    image = part.get("image_url")
    image = image if isinstance(image, Mapping) else {"url": image}
    # The default of the API, which vLLM lacks.
    detail = image.get("detail") or "auto"
    return {"type": "input_image", "image_url": image.get("url"), "detail": detail}


def render_turns(prompts: Sequence[Prompt], options: config.Endpoint) -> list[Rendered]:
    """Render the turns of a conversation as `{"model": …, "input": [` + items + `], …}`."""
    return [_render_turn(prompt, options) for prompt in prompts]


def _render_turn(prompt: Prompt, options: config.Endpoint) -> Rendered:
    rest = _rest(prompt, options)
    found = _input(prompt)
    items = [{"role": "user", "content": found}] if isinstance(found, str) else found
    return base.split_body("input", items, rest, base.requested_tokens(prompt, rest))


# --- history -------------------------------------------------------------------------------------


class _ItemEvent(msgspec.Struct, gc=False):
    type: str = ""
    output_index: int = -1
    item: msgspec.Raw = msgspec.Raw(b"")
    response: msgspec.Raw = msgspec.Raw(b"")


class _Output(msgspec.Struct, gc=False):
    output: list[msgspec.Raw] | None = None


class _CallItem(msgspec.Struct, gc=False):
    type: str = ""
    call_id: str | None = None
    arguments: Any = None


_RESULTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""Result type of each call type. For all other tools, servers have the results themselves."""
_decode_items = msgspec.json.Decoder(list[_ItemEvent]).decode
_decode_output = msgspec.json.Decoder(_Output).decode
_decode_call = msgspec.json.Decoder(_CallItem).decode


def read_body(body: bytes) -> Reply:
    """Return all items of the output unchanged."""
    return _reply([bytes(item) for item in decode_valid(_decode_output, body).output or ()])


def read_events(payloads: Sequence[bytes]) -> Reply:
    """Return the items from the events that complete them, since only these items are surely
    complete. Without such events, the items are in the stream's last event."""
    done: dict[int, bytes] = {}
    whole = b""
    for event in decode_events(_decode_items, payloads):
        if event.type == "response.output_item.done":
            done[event.output_index if event.output_index >= 0 else len(done)] = bytes(event.item)
        elif event.type in _ENDINGS:
            whole = bytes(event.response)
    if not done and whole:
        return read_body(whole)
    return _reply([done[index] for index in sorted(done)])


def _reply(items: list[bytes]) -> Reply:
    calls = [call for item in items if (call := decode_valid(_decode_call, item)).type in _RESULTS]
    arguments = [
        base.arguments_text(call.arguments) for call in calls if call.type == "function_call"
    ]
    return Reply(
        b",".join(items),
        calls=tuple(Call(call.call_id or "", _RESULTS[call.type]) for call in calls),
        defects=tuple(defects_of([call.call_id or "" for call in calls], arguments)),
    )


def tool_results(results: Sequence[tuple[Call, bytes]]) -> bytes:
    return b",".join(
        b'{"type":"%b","call_id":%b,"output":%b}'
        % (call.kind.encode(), msgspec.json.encode(call.id), content)
        for call, content in results
    )


RESPONSES = Endpoint(
    type=EndpointType.RESPONSES,
    path="/v1/responses",
    prompt_key="input",
    render=render,
    parse_event=parse_event,
    parse_body=parse_body,
)
CONVERSATIONS = Conversations(
    render=render_turns,
    render_messages=render_messages,
    render_tools=render_tools,
    stop_key="",
    read_body=read_body,
    read_events=read_events,
    tool_results=tool_results,
)
