"""Messages (`/v1/messages`), Anthropic's API with typed events, streamed or not.

The first event reports the input tokens, and the one with the stop reason the output tokens; there
is no `[DONE]`. An event without the main member of its type is malformed. Otherwise its beginning
would look meaningless to the cache of events (`core.responses.event_cache`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import SYSTEM_ROLES, Delta, Endpoint, Media, Prompt, Rendered
from aiperf_svc.core.endpoints.history import (
    Call,
    Conversations,
    Defect,
    Reply,
    check_message,
    decode_events,
    decode_valid,
    defects_of,
    is_chat_tool,
    is_json,
)
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.json_objects import Json

DEFAULT_MAX_TOKENS: Final = 1024
"""Maximum output tokens if the dataset has no length. The API requires one, and AIPerf sends this
one."""


class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: base.Count = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: base.Count = None
    """Input tokens that were neither read from nor written to a cache."""
    cache_creation_input_tokens: base.Count = None
    cache_read_input_tokens: base.Count = None
    output_tokens: base.Count = None
    """Output tokens, thinking included."""
    output_tokens_details: _OutputDetails | None = None


class _Block(msgspec.Struct, gc=False):
    """Block of a content, or an event's addition to one."""

    text: str | None = None
    thinking: str | None = None
    name: str | None = None
    """Name of the called tool."""
    input: msgspec.Raw = msgspec.Raw(b"")
    """Complete arguments of a tool."""
    partial_json: str | None = None
    """Next part of a tool's arguments."""
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    error: Any = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Block | None = None
    usage: _Usage | None = None


_MAIN_MEMBERS: Final = {
    "message_start": "message",
    "content_block_start": "content_block",
    "content_block_delta": "delta",
    "message_delta": "delta",
}
"""Main member of each type of event."""
_NO_ARGUMENTS: Final = (b"", b"{}")

_decode_event = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Message).decode


def parse_event(data: bytes) -> Delta:
    """Parse one event of a stream. Types without output, usage or an end yield an empty Delta."""
    try:
        event = _decode_event(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # In error objects of other APIs, `message` is a text.
        if found := base.find_error(data):
            return Delta(error=found)
        raise
    delta, kind = Delta(), event.type
    if kind in _MAIN_MEMBERS and getattr(event, _MAIN_MEMBERS[kind]) is None:
        raise base.malformed(ValueError(f"{kind} without {_MAIN_MEMBERS[kind]}"), data)
    if kind == "content_block_delta" and event.delta is not None:
        _add_block(delta, event.delta)
    elif kind == "message_start" and event.message is not None:
        _add_usage(delta, event.message.usage)
        # Its output count is the count so far, not that of the response.
        delta.completion_tokens = delta.reasoning_tokens = -1
    elif kind == "content_block_start" and event.content_block is not None:
        _add_block(delta, event.content_block)
    elif kind == "message_delta" and event.delta is not None:
        _add_usage(delta, event.usage)
        base.add_finish(delta, 0, event.delta.stop_reason)
    elif kind == "error" or not kind:
        delta.error = base.error_instead_of("type", data)
    return delta


def parse_body(body: bytes) -> Delta:
    message = _decode_body(body)
    delta = Delta()
    if message.error or message.content is None:
        delta.error = base.error_instead_of("content", body)
        return delta
    for block in message.content:
        _add_block(delta, block)
    _add_usage(delta, message.usage)
    base.add_finish(delta, 0, message.stop_reason)
    return delta


def _add_block(delta: Delta, block: _Block) -> None:
    delta.content += block.text or ""
    delta.reasoning += block.thinking or ""
    arguments = bytes(block.input)
    delta.tool_calls += (block.name or "") + (block.partial_json or "")
    if arguments not in _NO_ARGUMENTS:
        delta.tool_calls += arguments.decode()


def _add_usage(delta: Delta, usage: _Usage | None) -> None:
    """Write the reported counts into `delta`. Input is read from a cache, written to one, or
    neither; three members count these."""
    if usage is None:
        return
    if usage.input_tokens is not None:
        delta.cached_tokens = base.count_of(usage.cache_read_input_tokens)
        delta.cache_write_tokens = base.count_of(usage.cache_creation_input_tokens)
        read = base.count_of(usage.input_tokens)
        if read >= 0:
            read += max(0, delta.cached_tokens) + max(0, delta.cache_write_tokens)
        delta.prompt_tokens = base.count_of(read)
    delta.completion_tokens = base.count_of(usage.output_tokens)
    if usage.output_tokens_details is not None:
        base.add_reasoning_tokens(delta, usage.output_tokens_details.thinking_tokens)


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the whole body; system messages go into `system`."""
    rest = _rest(prompt, options)
    messages, system = _messages(prompt)
    if system and "system" not in rest:
        rest["system"] = system
    return Rendered(
        body=msgspec.json.encode({"messages": messages} | rest),
        requested_tokens=base.requested_tokens(prompt, rest),
    )


def _rest(prompt: Prompt, options: config.Endpoint) -> Json:
    rest = base.finish_body(
        prompt,
        options,
        prompt_key="messages",
        has_usage_option=False,
        render_tools=render_tools,
    )
    if "max_tokens" not in options.extra_inputs:
        rest.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    return rest


def _messages(prompt: Prompt) -> tuple[list[Any], list[Any]]:
    """Return the messages and the blocks of `system`."""
    if prompt.payload is not None:
        messages = prompt.payload.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("a payload of the messages API needs a non-empty list `messages`")
        return messages, []
    if prompt.is_empty:
        return [], []
    if prompt.messages:
        others = [each for each in prompt.messages if each.get("role") not in SYSTEM_ROLES]
        if not others:
            raise ValueError("the messages API needs a message besides those of the system")
        blocks = [_blocks(each) for each in prompt.messages if each.get("role") in SYSTEM_ROLES]
        return _converted(others), [block for each in blocks for block in each]
    system = [_text_block(prompt.system)] if prompt.system else []
    content: Any = prompt.texts[0] if prompt.texts else ""
    if len(prompt.texts) > 1 or prompt.media:
        # Pictures precede the text about them.
        content = [*map(_image_block, prompt.media), *map(_text_block, prompt.texts)]
    return _converted([{"role": prompt.role, "content": content}]), system


def render_messages(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Convert messages of the chat API to messages of this API."""
    return b",".join(map(msgspec.json.encode, _converted(messages)))


def render_tools(tools: Sequence[Any]) -> list[Any]:
    """Convert tool definitions of the chat API to this API."""
    return [_tool(tool["function"]) if is_chat_tool(tool) else tool for tool in tools]


def _tool(function: Mapping[str, Any]) -> Json:
    found = {name: function[name] for name in ("name", "description") if name in function}
    return found | {"input_schema": function.get("parameters") or {"type": "object"}}


def _converted(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Convert pictures, tool calls and results of the chat API to blocks. Consecutive results share
    one message. Reasoning, which this API only accepts with its signature, is dropped, as are names
    of speakers. Raises ValueError."""
    found: list[Mapping[str, Any]] = []
    results: list[Json] = []
    for message in messages:
        check_message(message, EndpointType.MESSAGES)
        if isinstance(parts := message.get("content"), list):
            message = {**message, "content": list(map(_block, parts))}
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            block = {"type": "tool_result", "tool_use_id": call, "content": message.get("content")}
            if not results:
                found.append({"role": "user", "content": results})
            results.append(block)
            continue
        results = []
        if calls := message.get("tool_calls"):
            content = message.get("content")
            blocks = content if isinstance(content, list) else [_text_block(content)]
            uses = [
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "input": msgspec.Raw(call["function"]["arguments"].encode() or b"{}"),
                }
                for call in calls
            ]
            message = {"role": "assistant", "content": [*(blocks if content else []), *uses]}
        found.append({"role": message.get("role"), "content": message.get("content")})
    return found


def _block(part: Any) -> Any:
    """Convert a content part of the chat API to a block."""
    if not isinstance(part, Mapping) or part.get("type") != "image_url":
        return part
    image = part.get("image_url")
    url = str(image.get("url") if isinstance(image, Mapping) else image)
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return _image_block(Media(kind, data) if data else Media("image/*", reference=url))


def _image_block(media: Media) -> Json:
    if media.data:
        source = {"type": "base64", "media_type": media.type, "data": media.data}
    else:
        source = {"type": "url", "url": media.reference}
    return {"type": "image", "source": source}


def _blocks(message: Any) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [_text_block(content)]


def _text_block(text: Any) -> Json:
    return {"type": "text", "text": text}


def render_turns(prompts: Sequence[Prompt], options: config.Endpoint) -> list[Rendered]:
    """Render the turns of a conversation as `{"model": …, "messages": [` + messages + `], …}`.
    Later turns keep the system texts of earlier ones."""
    turns, system = [], list[Any]()
    for prompt in prompts:
        rest = _rest(prompt, options)
        messages, added = _messages(prompt)
        system += added
        if system and "system" not in rest:
            rest["system"] = list(system)
        turns.append(
            base.split_body("messages", messages, rest, base.requested_tokens(prompt, rest))
        )
    return turns


# --- history -------------------------------------------------------------------------------------


class _Blocks(msgspec.Struct, gc=False):
    content: list[msgspec.Raw] | None = None


class _ToolUse(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    text: str | None = None


class _BlockPart(msgspec.Struct, gc=False):
    """An event's addition to a block."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: Any = None


class _BlockEvent(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    content_block: Json | None = None
    delta: _BlockPart | None = None


_decode_blocks = msgspec.json.Decoder(_Blocks).decode
_decode_block_events = msgspec.json.Decoder(list[_BlockEvent]).decode
_decode_tool_use = msgspec.json.Decoder(_ToolUse).decode


def read_body(body: bytes) -> Reply:
    """Return a message with all blocks unchanged: the API refuses changed blocks."""
    found = decode_valid(_decode_blocks, body).content or ()
    return _reply([bytes(block) for block in found], [])


def read_events(payloads: Sequence[bytes]) -> Reply:
    """Return the message with the blocks from these events."""
    blocks: dict[int, Json] = {}
    parts: dict[int, dict[str, list[Any]]] = {}
    for event in decode_events(_decode_block_events, payloads):
        if event.type == "content_block_start" and event.content_block is not None:
            blocks[event.index] = event.content_block
            parts[event.index] = {}
        elif event.type == "content_block_delta" and event.delta is not None:
            found = parts.setdefault(event.index, {})
            for name in _BlockPart.__struct_fields__:
                if (value := getattr(event.delta, name)) is not None:
                    found.setdefault(name, []).append(value)
    defects: list[Defect] = []
    made = [_whole(blocks[index], parts[index], defects) for index in sorted(blocks)]
    return _reply([msgspec.json.encode(block) for block in made], defects)


def _whole(block: Json, parts: dict[str, list[Any]], defects: list[Defect]) -> Json:
    """Return a block with the parts of its events. The input of a tool is an object, so parts that
    are not JSON cannot be sent back."""
    for name in ("text", "thinking", "signature"):
        if name in parts:
            block[name] = (block.get(name) or "") + "".join(parts[name])
    if "citation" in parts:
        block["citations"] = [*(block.get("citations") or ()), *parts["citation"]]
    if arguments := "".join(parts.get("partial_json", ())):
        if is_json(arguments):
            block["input"] = msgspec.Raw(arguments.encode())
        else:
            defects.append(Defect.ARGUMENTS)
    return block


def _reply(blocks: list[bytes], defects: list[Defect]) -> Reply:
    """Return a message with these blocks, except empty texts, which the API refuses."""
    known = [(block, decode_valid(_decode_tool_use, block)) for block in blocks]
    known = [(block, use) for block, use in known if use.type != "text" or use.text]
    ids = [use.id or "" for _, use in known if use.type == "tool_use"]
    content = b",".join(block for block, _ in known)
    return Reply(
        b'{"role":"assistant","content":[%b]}' % content if content else b"",
        calls=tuple(map(Call, ids)),
        defects=tuple(dict.fromkeys([*defects, *defects_of(ids, ())])),
    )


def tool_results(results: Sequence[tuple[Call, bytes]]) -> bytes:
    """Return a user's message with all results, which the API requires as the next message."""
    blocks = b",".join(
        b'{"type":"tool_result","tool_use_id":%b,"content":%b}'
        % (msgspec.json.encode(call.id), content)
        for call, content in results
    )
    return b'{"role":"user","content":[%b]}' % blocks


MESSAGES = Endpoint(
    type=EndpointType.MESSAGES,
    path="/v1/messages",
    prompt_key="messages",
    render=render,
    parse_event=parse_event,
    parse_body=parse_body,
    headers={"anthropic-version": "2023-06-01"},
    api_key_header="x-api-key",
)
CONVERSATIONS = Conversations(
    render=render_turns,
    render_messages=render_messages,
    render_tools=render_tools,
    system_key="system",
    stop_key="stop_sequences",
    read_body=read_body,
    read_events=read_events,
    tool_results=tool_results,
)
