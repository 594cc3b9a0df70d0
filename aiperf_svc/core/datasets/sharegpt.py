"""ShareGPT JSON: a list of `{"id": …, "conversations": [{"from": "human", "value": …}, …]}`.

Each human message is one request. The answer that follows it in the file gives the request's output
length (when a tokenizer can count it); the history is made of the server's own answers. A system
message goes in front of the first request.

Left out, and counted: conversations without a human message, and those with speakers that are none
of human, gpt and system (or their other names below). What precedes the first human message is
dropped, as is everything from the first empty human message on. Nothing is filtered by length.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from aiperf_svc.core.datasets.base import (
    Lines,
    PromptConversation,
    PromptTurn,
    decode_line,
    default_id,
    numbered,
)
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError

EXPECTED = (
    'a JSON list of objects such as {"id": "a", "conversations": '
    '[{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]}'
)

_SPEAKERS = {"human": "user", "user": "user", "system": "system"}
_SPEAKERS |= dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant"), "assistant")


class _Message(msgspec.Struct):
    value: str
    speaker: str = msgspec.field(name="from")


class _Conversation(msgspec.Struct):
    conversations: list[_Message]
    id: str | int | None = None


_decoder = msgspec.json.Decoder(_Conversation)


def parse(
    lines: Lines, source: str, *, limit: int | None = None
) -> tuple[list[PromptConversation], int]:
    """The first `limit` usable conversations, and the number of those left out among them.

    Raises DatasetError that names file and line.
    """
    entries: list[PromptConversation] = []
    left_out = 0
    for number, element in numbered(lines):
        if limit is not None and len(entries) == limit:
            break
        place = f"{source}:{number}"
        written = decode_line(element, _decoder, place=place, expected=EXPECTED)
        turns = _turns(written.conversations)
        if not turns:
            left_out += 1
            continue
        name = str(written.id or default_id(len(entries)))
        entries.append(PromptConversation(id=name, turns=turns, place=place))
    return entries, left_out


def _turns(written: list[_Message]) -> tuple[PromptTurn, ...]:
    turns: list[PromptTurn] = []
    system = ""
    for message in written:
        role = _SPEAKERS.get(message.speaker)
        if role is None:
            return ()
        if role == "user":
            if not message.value.strip():
                break
            turns.append(PromptTurn(_prompt(message.value, system="" if turns else system)))
        elif role == "assistant" and turns and not turns[-1].answer:
            turns[-1] = PromptTurn(turns[-1].prompt, answer=message.value)
        elif role == "system" and not turns:
            system = message.value
    return tuple(turns)


def _prompt(text: str, *, system: str) -> Prompt:
    if not system:
        return Prompt(texts=(text,))
    return Prompt(
        messages=({"role": "system", "content": system}, {"role": "user", "content": text})
    )


_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)
"""A string, whole or cut off by the end of the data, or a bracket."""


def list_elements(data: Any, source: str) -> Iterator[tuple[int, bytes]]:
    """The elements of a JSON list, one at a time, each with the line on which it begins.

    `data` is bytes or a memory map: a file of hundreds of megabytes is never decoded whole. Only
    brackets and strings are looked at; what is inside an element is for its decoder to judge.
    Raises DatasetError for what is no list, or a list without end.
    """
    opening = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[").match(data)
    if opening is None:
        raise DatasetError(f"{source}:1: this is no list; expected {EXPECTED}")
    depth, begin, line, counted = 0, 0, 1, 0
    last_end, separator = opening.end(), b""
    for token in _TOKEN.finditer(data, opening.end()):
        start, end = token.span()
        byte = data[start : start + 1]
        if byte == b'"' and not token[1]:
            break
        closes_list = depth == 0 and byte == b"]"
        if depth == 0:
            begin = start
            line += data[counted:begin].count(b"\n")
            counted = begin
            gap = data[last_end:begin].strip()
            if gap != (b"" if closes_list else separator):
                shown = gap[:40].decode("utf-8", "backslashreplace")
                wrong = f"`{shown}` between elements" if gap else "no comma between elements"
                raise DatasetError(f"{source}:{line}: {wrong}; expected {EXPECTED}")
        if closes_list:
            return
        if byte in b"[{":
            depth += 1
        elif byte != b'"':
            depth -= 1
        if depth <= 0:
            yield line, bytes(data[begin:end])
            depth, last_end, separator = 0, end, b","
    line += data[counted:].count(b"\n")
    raise DatasetError(f"{source}:{line}: the list has no end; expected {EXPECTED}")
