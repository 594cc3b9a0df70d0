"""Conversations of the mock server: tool calls in its responses, and a check of the returned
history.

The check refuses what real APIs refuse (calls without results, results without calls, empty
messages, altered blocks), and every earlier response that differs from what this server sent in the
same conversation. It compares value by value, with numbers as written and with the members of a
call's input in order, because chat templates show both. Space between values and escapes of strings
may differ, because a model server does not see them. The session header identifies the
conversation. Without it, only the form is checked.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from aiperf_svc.mock_server.requests import CHAT, MESSAGES, RESPONSES

Members = dict[str, Any]
TOOL = "lookup"
ARGUMENTS = '{"query": "a \\"b\\" \\u00fc", "limit": 3, "above": 2.50}'
"""Arguments of each call. They contain escapes and a number, which a history must not normalise."""
MAX_SESSIONS = 100_000
"""Maximum number of conversations; beyond it, the one that has been idle longest is dropped."""


class _Number(str):
    """A number as written, which equals no string."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and str.__eq__(self, other)

    __hash__ = str.__hash__


def decoded(data: str | bytes) -> Any:
    """Return JSON with its numbers as written."""
    return json.loads(data, parse_float=_Number, parse_int=_Number)


def call_id(turn: int, number: int) -> str:
    return f"call_mock_{turn}_{number}"


def argument_parts() -> list[str]:
    """Return the arguments of a call in the parts of a stream."""
    third = len(ARGUMENTS) // 3
    return [ARGUMENTS[:third], ARGUMENTS[third : 2 * third], ARGUMENTS[2 * third :]]


def turn_of(path: str, data: Members) -> int:
    """Return the number of earlier responses in a request."""
    return len(_responses_in(path, _entries(path, data)))


def may_call(path: str, data: Members) -> bool:
    """Return whether a request offers tools and does not end with the result of a tool."""
    entries = _entries(path, data)
    last = entries[-1] if entries else {}
    content = last.get("content")
    is_result = last.get("role") == "tool" or str(last.get("type", "")).endswith("_output")
    if isinstance(content, list) and content:
        is_result |= content[0].get("type") == "tool_result"
    return bool(data.get("tools")) and not is_result


def _entries(path: str, data: Members) -> list[Members]:
    found = data.get("input" if path == RESPONSES else "messages")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _responses_in(path: str, entries: Sequence[Members]) -> list[list[Members]]:
    """Return the message, blocks or items of each earlier response in a request."""
    if path != RESPONSES:
        return [
            [entry] if path == CHAT else list(_blocks(entry))
            for entry in entries
            if entry.get("role") == "assistant"
        ]
    found: list[list[Members]] = []
    is_new = True
    for entry in entries:
        kind = str(entry.get("type", "message"))
        if entry.get("role") in ("user", "system", "developer") or kind.endswith("_output"):
            is_new = True
        elif is_new:
            found.append([entry])
            is_new = False
        else:
            found[-1].append(entry)
    return found


def _blocks(entry: Members) -> Iterable[Members]:
    content = entry.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


class Histories:
    """The earlier responses of each conversation."""

    def __init__(self) -> None:
        self._sent: dict[str, list[list[Members]]] = {}
        """By session, the one that has been idle longest first."""

    def problem(self, session: str, path: str, data: Members) -> str:
        """Return the problem of the history in a request; empty if there is none."""
        entries = _entries(path, data)
        if wrong := _SHAPES[path](entries):
            return wrong
        found, sent = _responses_in(path, entries), self._sent.get(session, [])
        if not session:
            return ""
        if len(found) != len(sent):
            return f"the history has {len(found)} responses, and {len(sent)} were sent"
        for turn, (back, before) in enumerate(zip(found, sent, strict=True)):
            if back != before or _inputs(back) != _inputs(before):
                return f"response {turn + 1} was altered: {back!r} was sent as {before!r}"
        return ""

    def add(self, session: str, response: list[Members]) -> None:
        """Record a sent response, as returned by `decoded`."""
        self._sent[session] = [*self._sent.pop(session, ()), response]
        if len(self._sent) > MAX_SESSIONS:
            del self._sent[next(iter(self._sent))]


def _inputs(response: Sequence[Members]) -> list[str]:
    """Return the inputs of calls with their members in order; object equality ignores it."""
    return [json.dumps(block.get("input")) for block in response]


def _chat_problem(entries: Sequence[Members]) -> str:
    open_ids: list[str] = []
    for index, entry in enumerate(entries):
        name, role = f"messages.{index}", entry.get("role")
        if role == "tool":
            if entry.get("tool_call_id") not in open_ids:
                return f"{name}: no tool call {entry.get('tool_call_id')!r} precedes its result"
            open_ids.remove(entry["tool_call_id"])
            continue
        if open_ids:
            return f"{name}: the tool calls {', '.join(open_ids)} have no result"
        if role != "assistant":
            continue
        calls = entry.get("tool_calls")
        if calls == []:
            return f"{name}.tool_calls: [] is too short"
        if entry.get("content") is None and not calls:
            return f"{name}.content: null, without tool calls"
        for call in calls or ():
            if not call.get("id"):
                return f"{name}.tool_calls: a call without an id"
            if not isinstance(call.get("function", {}).get("arguments"), str):
                return f"{name}.tool_calls: arguments are not a string"
            open_ids.append(call["id"])
    return f"the tool calls {', '.join(open_ids)} have no result" if open_ids else ""


def _messages_problem(entries: Sequence[Members]) -> str:
    # Consecutive messages of one role are one message.
    turns: list[tuple[Any, list[Members]]] = []
    for index, entry in enumerate(entries):
        if not entry.get("content"):
            return f"messages.{index}: the content is empty"
        if turns and turns[-1][0] == entry.get("role"):
            turns[-1][1].extend(_blocks(entry))
        else:
            turns.append((entry.get("role"), list(_blocks(entry))))
    open_ids: list[Any] = []
    for index, (role, blocks) in enumerate(turns):
        if any(block.get("type") == "text" and not block.get("text") for block in blocks):
            return f"messages.{index}: text content blocks must be non-empty"
        results = [block for block in blocks if block.get("type") == "tool_result"]
        if blocks[: len(results)] != results:
            return f"messages.{index}: tool_result blocks are not at the beginning"
        ids = [block.get("tool_use_id") for block in results]
        if sorted(map(str, ids)) != sorted(map(str, open_ids)):
            return f"messages.{index}: results of {ids}, expected those of {open_ids}"
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        if any(not isinstance(block.get("input"), dict) for block in uses):
            return f"messages.{index}: the input of a tool_use is not an object"
        open_ids = [block.get("id") for block in uses] if role == "assistant" else []
    return f"tool_use {open_ids} has no tool_result" if open_ids else ""


def _responses_problem(entries: Sequence[Members]) -> str:
    calls = [e.get("call_id") for e in entries if e.get("type") == "function_call"]
    outputs = [e.get("call_id") for e in entries if e.get("type") == "function_call_output"]
    if missing := [each for each in calls if each not in outputs]:
        return f"no tool output found for function call {missing[0]}"
    if missing := [each for each in outputs if each not in calls]:
        return f"no tool call found for function call output with call_id {missing[0]}"
    for index, entry in enumerate(entries):
        if entry.get("type") == "reasoning" and not entry.get("encrypted_content"):
            return f"input.{index}: reasoning without encrypted_content"
    return ""


_SHAPES = {CHAT: _chat_problem, MESSAGES: _messages_problem, RESPONSES: _responses_problem}
CHECKED = frozenset(_SHAPES)
"""Paths whose requests may have a history."""
