"""Computes what a response adds to the history of its conversation, and the interface that APIs
with conversations implement for it.

An assistant's turn is sent back unchanged: text, reasoning under its original name, tool calls with
their ids and the text of their arguments, refusals, signed blocks. Servers refuse changed content
or do not find it in their caches. The history is built from the bytes of the response after its end
has been measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Prompt, Rendered

T = TypeVar("T")
NO_RESULT = b'"ok"'
"""Result of a call for which the dataset has neither a result nor a spare one."""


class Defect(IntEnum):
    """A defect of the tool calls in a response."""

    ARGUMENTS = 0
    NO_ID = 1
    CHANGED_ID = 2
    REPEATED_ID = 3
    UNCALLED = 4

    @property
    def text(self) -> str:
        """Description that follows a number of responses in a sentence."""
        return _TEXTS[self]


_TEXTS = (
    "with tool-call arguments that are not JSON",
    "with a tool call without an id",
    "with a tool call whose id changes within the stream",
    "with two tool calls of the same id",
    "without a tool call where the dataset has tool results, which were sent as a user's text",
)


class Call(NamedTuple):
    """A tool call, whose result is in the next request."""

    id: str
    kind: str = ""
    """Type of the result, if an API has several."""


class Reply(msgspec.Struct, frozen=True):
    """A response as part of a history."""

    items: bytes
    """Its messages or items in JSON, joined by commas; empty if nothing is sent back."""
    calls: tuple[Call, ...] = ()
    defects: tuple[Defect, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversations:
    """How an API represents a conversation. A turn's body is `head`, the messages of the history
    and its own, and `tail`."""

    render: Callable[[Sequence[Prompt], config.Endpoint], list[Rendered]]
    """Renders the turns of a conversation, all with the same head. A prompt without content yields
    an empty body. Raises ValueError."""
    render_messages: Callable[[Sequence[Mapping[str, Any]]], bytes]
    """Converts messages of the chat API to JSON in the form of this API, joined by commas. Raises
    ValueError for a message without such a form."""
    read_body: Callable[[bytes], Reply]
    """Reads a whole response. Raises MalformedResponse."""
    read_events: Callable[[Sequence[bytes]], Reply]
    """Reads the data of a stream's events. Raises MalformedResponse."""
    tool_results: Callable[[Sequence[tuple[Call, bytes]]], bytes]
    """Returns the messages or items, joined by commas, with the results of calls. Each result is a
    JSON string or list of parts."""
    render_tools: Callable[[Sequence[Any]], list[Any]] = list
    """Converts tool definitions of the chat API to the form of this API."""
    system_key: str = ""
    """Member of the body with the system texts; empty: they are messages."""
    stop_key: str = "stop"
    """Member of the body with the stop sequences; empty: not supported."""


def added_to_history(
    api: Conversations,
    messages: bytes,
    reply: Reply,
    results: Sequence[bytes],
    spare: bytes = b"",
) -> tuple[list[bytes], Sequence[Defect]]:
    """Return the additions to a history after a turn, in parts to be joined by commas: its
    messages, the response, and the results for the tools it calls. Also return the defects.

    The results are JSON texts, in the order of the calls. If there are fewer, the last one is used
    for all further calls; without any, the `spare` one is used. If nothing was called, the server
    gets them as a user's text.
    """
    parts = [each for each in (messages, reply.items) if each]
    defects: Sequence[Defect] = reply.defects
    if reply.calls:
        known = results or (spare or NO_RESULT,)
        found = [known[min(place, len(known) - 1)] for place in range(len(reply.calls))]
        parts.append(api.tool_results(list(zip(reply.calls, found, strict=True))))
    elif results:
        parts += map(user_message, results)
        defects = (*defects, Defect.UNCALLED)
    return parts, defects


def split_results(prompt: Prompt, api: Conversations) -> tuple[Prompt, tuple[bytes, ...]]:
    """Split the tool results at the beginning of a prompt from the rest; encode them as JSON."""
    messages = prompt.messages
    count = next((n for n, m in enumerate(messages) if m.get("role") != "tool"), len(messages))
    results = tuple(encoded_result(m, api) for m in messages[:count])
    return msgspec.structs.replace(prompt, messages=messages[count:]), results


def encoded_result(message: Mapping[str, Any], api: Conversations) -> bytes:
    """Return the content of a tool's result as JSON, with parts in the form of an API. Raises
    ValueError."""
    content = message.get("content")
    if isinstance(content, list):
        user = api.render_messages([{"role": "user", "content": content}])
        content = msgspec.json.decode(user)["content"]
    return msgspec.json.encode(content)


class _ChatFunction(msgspec.Struct):
    name: str
    arguments: str


class _ChatCall(msgspec.Struct):
    id: str
    function: _ChatFunction


def check_message(message: Mapping[str, Any], api: str) -> None:
    """Raise ValueError for a chat API message that another API cannot represent: one with content
    that only the chat API supports, or with invalid tool calls."""
    if message.get("role") == "function" or message.get("function_call"):
        raise ValueError(
            f"role `function` and `function_call`: the {api} API has neither; write `tool_calls` "
            "and role `tool`, or use endpoint.type chat"
        )
    parts = message.get("content")
    if isinstance(parts, list) and any(map(_is_sound, parts)):
        raise ValueError(f"`input_audio`: sounds need endpoint.type chat, not {api}")
    if not (stated := message.get("tool_calls")):
        return
    try:
        calls = msgspec.convert(stated, list[_ChatCall])
    except msgspec.ValidationError as error:
        raise ValueError(f"`tool_calls`: {error}") from None
    if not all(is_arguments(call.function.arguments) for call in calls):
        raise ValueError("`tool_calls` have `arguments` that are not JSON")


def _is_sound(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "input_audio"


def is_chat_tool(tool: Any) -> bool:
    """Return whether a tool definition has the form of the chat API."""
    return isinstance(tool, dict) and isinstance(tool.get("function"), dict)


def user_message(content: bytes) -> bytes:
    """Return a user's message with this content as JSON in the form that all APIs accept."""
    return b'{"role":"user","content":%b}' % content


def decode_events(
    decode_list: Callable[[bytes], list[T]], payloads: Sequence[bytes]
) -> Sequence[T]:
    """Decode the data of events, all at once. Raises MalformedResponse."""
    try:
        return decode_list(b"[%b]" % b",".join(payloads))
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    found: list[T] = []
    for data in payloads:
        if data.strip():
            found += decode_valid(decode_list, b"[%b]" % data)
    return found


def decode_valid(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode JSON that may contain numbers such as NaN or lone surrogates. Raises
    MalformedResponse."""
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            return decode(base.valid_json(data))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise base.malformed(error, data) from None


def is_arguments(text: str) -> bool:
    """Return whether a text is the arguments of a tool call. An empty text is not."""
    return not text or is_json(text)


def is_json(text: str | bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def defects_of(ids: Sequence[str], arguments: Sequence[str]) -> list[Defect]:
    """Return the defects of tool calls with these ids and arguments."""
    found = []
    if not all(map(is_arguments, arguments)):
        found.append(Defect.ARGUMENTS)
    if not all(ids):
        found.append(Defect.NO_ID)
    known = [each for each in ids if each]
    if len(set(known)) < len(known):
        found.append(Defect.REPEATED_ID)
    return found


def is_stated(raw: msgspec.Raw | bytes) -> bool:
    """Return whether a member of a message has a value to send back: not missing, not null, and not
    an empty list, which APIs refuse."""
    return bytes(raw) not in (b"", b"null", b"[]")
