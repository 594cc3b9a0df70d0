"""Reads agent traces from OpenTelemetry spans with GenAI attributes: one JSON object per session.

    {"spans": [{"span_id", "trace_id", "start_time", "end_time", "name", "attributes": {...}}]}

Spans with `gen_ai.input.messages` are requests; others are ignored. Of the attributes,
`gen_ai.system_instructions`, `gen_ai.tool.definitions`, `gen_ai.usage.prompt_tokens` or
`.input_tokens`, and `.completion_tokens` or `.output_tokens` are read, as written by inference-perf
and GuideLLM. Messages are a list or JSON, in the form of the chat API or with the `parts` of the
semantic conventions. A part that no API supports is refused: without it, the load would differ from
the trace.

A request whose messages begin with those of a stream's last request continues that stream;
otherwise it begins one. It waits for the requests that had ended when it started, which include the
requests whose outputs its messages contain. Prompts are those of the trace.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from aiperf_svc.core.datasets.base import decode_line, line_error
from aiperf_svc.core.datasets.session_trees import (
    Interval,
    TracedTree,
    TreeRequest,
    checked_tree,
    common_prefix,
    message_problem,
    recorded_order,
    time_problem,
)
from aiperf_svc.core.endpoints.base import Media
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.protocol.messages.dataset import Stream

EXPECTED = (
    'an object such as {"spans": [{"span_id": "a", "start_time": "2026-01-01T00:00:00Z", '
    '"end_time": "2026-01-01T00:00:01Z", "attributes": {"gen_ai.input.messages": [...]}}]}'
)
_INPUT, _INSTRUCTIONS = "gen_ai.input.messages", "gen_ai.system_instructions"
_OUTPUT_TOKENS = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
_INPUT_TOKENS = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
_BODY_MEMBERS = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.stop_sequences": "stop",
}


class _Span(msgspec.Struct):
    span_id: str
    start_time: str | int | float
    end_time: str | int | float
    attributes: Json = {}
    trace_id: str = ""


class _Trace(msgspec.Struct):
    spans: list[_Span]
    session_id: str = ""


class _Call(msgspec.Struct):
    """A span that represents a request."""

    place: str
    span: _Span
    messages: list[Json]
    start_s: float
    end_s: float
    stream: int = 0


_decoder = msgspec.json.Decoder(_Trace)


def read_tree(content: bytes, place: str) -> TracedTree:
    """Return the session of a trace. Raises DatasetError that names the place."""
    trace: _Trace = decode_line(content, _decoder, place=place, expected=EXPECTED)
    calls = [
        _call(span, f"{place}: spans[{number}] {span.span_id!r}")
        for number, span in enumerate(trace.spans)
        if _INPUT in span.attributes
    ]
    if not calls:
        raise DatasetError(f"{place}: no span with `{_INPUT}`; expected {EXPECTED}")
    calls.sort(key=lambda call: (call.start_s, call.end_s))
    zero_s = calls[0].start_s
    for call in calls:
        call.start_s, call.end_s = call.start_s - zero_s, call.end_s - zero_s
        for name, time_s in (("start_time", call.start_s), ("end_time", call.end_s)):
            if problem := time_problem(name, time_s):
                raise DatasetError(f"{call.place}: {problem} after the first span")
    streams = _streams(calls)
    intervals = [Interval(call.stream, call.start_s, call.end_s) for call in calls]
    return checked_tree(
        TracedTree(
            id=trace.session_id or calls[0].span.trace_id or place,
            place=place,
            streams=tuple(streams),
            requests=tuple(
                TreeRequest(
                    plan=plan,
                    messages=tuple(call.messages),
                    input_tokens=_count(call, _INPUT_TOKENS) or -1,
                    output_tokens=_count(call, _OUTPUT_TOKENS) or None,
                    members=_members(call),
                )
                for plan, call in zip(recorded_order(intervals), calls, strict=True)
            ),
        )
    )


def _call(span: _Span, place: str) -> _Call:
    start_s, end_s = (_seconds(value, place) for value in (span.start_time, span.end_time))
    if not start_s <= end_s:
        raise DatasetError(f"{place}: `end_time` is before `start_time`")
    return _Call(place, span, _messages(span, place), start_s, end_s)


def _seconds(value: str | int | float, place: str) -> float:
    """Return a time as seconds since 1970; a number is nanoseconds."""
    try:
        if not isinstance(value, str):
            return value / 1e9
        if value.isdecimal():
            return int(value) / 1e9
        date = datetime.fromisoformat(value)
    except (ValueError, OverflowError) as error:
        raise line_error(place, str(error), expected="an ISO date") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _messages(span: _Span, place: str) -> list[Json]:
    """Return the messages of a request in the form of the chat API, instructions first."""
    written = _list(span, _INPUT, place)
    if not written:
        raise DatasetError(f"{place}: `{_INPUT}` is empty; expected messages")
    instructions = span.attributes.get(_INSTRUCTIONS) or []
    if isinstance(instructions, str) and not instructions.startswith("["):
        written = [{"role": "system", "content": instructions}, *written]
    elif parts := _list(span, _INSTRUCTIONS, place):
        written = [{"role": "system", "parts": parts}, *written]
    messages: list[Json] = []
    try:
        for message in written:
            messages += _messages_of_parts(message) if _has_parts(message) else [message]
    except ValueError as error:
        raise DatasetError(f"{place}: {error}") from None
    if problem := message_problem(messages):
        raise DatasetError(f"{place}: `{_INPUT}`: {problem}")
    return messages


def _list(span: _Span, name: str, place: str) -> list[Any]:
    value = _decoded(span.attributes.get(name) or [], name, place)
    if not isinstance(value, list):
        raise DatasetError(f"{place}: `{name}` is not a list; expected one, or its JSON")
    return value


def _decoded(value: Any, name: str, place: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DatasetError(f"{place}: `{name}` is not JSON: {error}") from None


def _has_parts(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("parts"), list)


def _messages_of_parts(message: Mapping[str, Any]) -> list[Json]:
    """Convert a message with parts to messages of the chat API, where results of tools are separate
    messages. Some traces use parts of Anthropic's API. Raises ValueError for a part that no API
    has."""
    content, calls, results = list[Json](), list[Json](), list[Json]()
    thoughts = list[str]()
    for part in message["parts"]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            text = part.get("content") or part.get("text") or ""
            content.append({"type": "text", "text": str(text)})
        elif kind in ("reasoning", "thinking"):
            thoughts.append(str(part.get("content") or part.get("thinking") or ""))
        elif kind in ("blob", "uri") and (url := _image_url(part)):
            content.append({"type": "image_url", "image_url": {"url": url}})
        elif kind in ("tool_call", "tool_use"):
            value = part.get("arguments", part.get("input"))
            arguments = value if isinstance(value, str) else _json(value or {})
            function = {"name": part.get("name"), "arguments": arguments}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind in ("tool_call_response", "tool_result"):
            value = part.get("response", part.get("result", part.get("content")))
            result = value if isinstance(value, str) else _json(value)
            call = part.get("id") or part.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": call, "content": result})
        else:
            raise ValueError(
                f"a part of type {kind!r} in a message; expected text, reasoning, tool_call, "
                "tool_call_response, or blob or uri with an image"
            )
    if results and not (content or thoughts or calls):
        return results
    made: Json = {"role": message.get("role"), "content": content}
    if all(each["type"] == "text" for each in content):
        made["content"] = "\n".join(each["text"] for each in content)
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return [*results, made]


def _image_url(part: Mapping[str, Any]) -> str:
    """Return the URL of a picture; empty if the part has none."""
    if part.get("modality") != "image":
        return ""
    uri, data = part.get("uri"), part.get("content")
    return str(uri or (data and Media(part.get("mime_type") or "image/png", data).url) or "")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _streams(calls: Sequence[_Call]) -> list[Stream]:
    """Assign a stream to each call, and return the streams."""
    streams: list[Stream] = []
    tails: dict[int, _Call] = {}
    for call in calls:
        best, shared, parent = -1, 0, -1
        for stream, tail in tails.items():
            if tail.end_s > call.start_s:
                continue
            common = common_prefix(tail.messages, call.messages)
            if common == len(tail.messages) and common > shared:
                best, shared = stream, common
            if parent < 0 or tail.end_s > tails[parent].end_s:
                parent = stream
        if best < 0:
            best = len(streams)
            streams.append(Stream(call.span.span_id, parent))
        call.stream, tails[best] = best, call
    return streams


def _count(call: _Call, names: Sequence[str]) -> int:
    """Return a count of tokens; 0 if missing."""
    value = next((v for name in names if (v := call.span.attributes.get(name)) is not None), 0)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise DatasetError(f"{call.place}: `{names[0]}` {value!r} is not a number of tokens")
    return value


def _members(call: _Call) -> Json:
    attributes = call.span.attributes
    members = {
        member: attributes[name]
        for name, member in _BODY_MEMBERS.items()
        if attributes.get(name) is not None
    }
    if tools := _list(call.span, "gen_ai.tool.definitions", call.place):
        members["tools"] = list(map(_chat_tool, tools))
    return members


def _chat_tool(tool: Any) -> Any:
    """Convert a tool definition of the semantic conventions to the chat API, if it is one."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or "name" not in tool:
        return tool
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool[name] for name in names if name in tool}}
