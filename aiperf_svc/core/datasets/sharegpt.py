"""Parses ShareGPT JSON: a list of `{"id": …, "conversations": [{"from": "human", "value": …}, …]}`.

Each human message is one request. The next response in the file defines the request's output length
(if a tokenizer can count it); the history consists of the server's own responses. A
system message precedes the first request.

Conversations without a human message are skipped and counted, as are those with speakers other than
human, gpt and system (or their aliases below). Messages before the first human one are dropped, and
so is everything from the first empty human message on. Nothing is filtered by length.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from aiperf_svc.core.datasets.base import (
    Lines,
    PromptConversation,
    PromptTurn,
    decoded,
    line_error,
    parse_entries,
)
from aiperf_svc.core.endpoints.base import Prompt

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
    """Parse the first `limit` usable conversations. Returns them and the number of skipped
    conversations among them.

    Raises DatasetError that names file and line.
    """
    parsed = decoded(lines, source, _decoder, expected=EXPECTED)
    return parse_entries(parsed, _entry, limit=limit, expected=EXPECTED)


def _entry(written: _Conversation) -> tuple[str | int | None, tuple[PromptTurn, ...]]:
    return written.id, _turns(written.conversations)


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
        elif role == "assistant" and turns and not turns[-1].response:
            recorded = ({"role": "assistant", "content": message.value},)
            turns[-1] = PromptTurn(turns[-1].prompt, response=message.value, recorded=recorded)
        elif role == "system" and not turns:
            system = message.value
    return tuple(turns)


def _prompt(text: str, *, system: str) -> Prompt:
    if not system:
        return Prompt(texts=(text,))
    return Prompt(
        messages=({"role": "system", "content": system}, {"role": "user", "content": text})
    )


_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_BYTE = re.compile(r"\(byte (\d+)\)")


def list_elements(data: Any, source: str) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of a JSON list, one at a time, each with the line on which it begins.

    `data` is bytes or a memory map. A file of hundreds of megabytes is checked and split in place,
    and only the requested elements are decoded. Raises DatasetError unless it is a valid JSON
    list.
    """
    if data[:3] == b"\xef\xbb\xbf":
        data = data[3:]
    try:
        elements = _list_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        line = data[: _position(error, len(data))].count(b"\n") + 1
        raise line_error(f"{source}:{line}", str(error), expected=EXPECTED) from None
    except RecursionError:
        raise line_error(source, "values nested too deeply", expected=EXPECTED) from None
    line, end = 1, 0
    for element in elements:
        text = bytes(element)
        begin = data.find(text, end)
        line += data[end:begin].count(b"\n")
        yield line, text
        line += text.count(b"\n")
        end = begin + len(text)


def _position(error: Exception, size: int) -> int:
    """Return the byte position of a decoder's error: the stated one, or the end, or otherwise the
    beginning."""
    stated = _BYTE.search(str(error))
    if stated is not None:
        return int(stated[1])
    return size if "truncated" in str(error) else 0
