"""Parses JSONL with one conversation per line: `{"session_id": …, "turns": [{"text": …}, …]}`.

Every turn is one request (see `fields`; a plain string is allowed), except for these:

- `system` and `developer` precede the next turn's message. - `assistant` is the recorded response
to the previous turn: `text`, `reasoning`, `reasoning_content` and `tool_calls` as in the chat API,
or whole `messages`. `dataset.history` decides whether later requests contain it or the server's own
response. - `tool` is the result for a tool call of this response, with `tool_call_id`: its `text`,
or `tokens` for words of that length, or neither for a drawn length. Consecutive results form one
request, together with a user's turn right after them. Its output length is the last one that they
state.
"""

from typing import Any

import msgspec

from aiperf_svc.core.datasets.base import (
    Lines,
    PromptConversation,
    PromptTurn,
    Unwritten,
    decoded,
    parse_entries,
)
from aiperf_svc.core.datasets.fields import TurnFields, delay_ns, output_tokens, turn_of
from aiperf_svc.core.datasets.synthetic import MAX_INPUT_TOKENS
from aiperf_svc.core.endpoints.base import SYSTEM_ROLES, Prompt
from aiperf_svc.domain.json_objects import Json

EXPECTED = 'an object such as {"session_id": "a", "turns": [{"text": "Hello", "delay": 500}]}'
MAX_TURNS = 65_535
"""Maximum turns of a conversation: datasets and records store turns in 16 bits."""

ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool", "function")
"""Roles of messages of the chat API."""


class _Conversation(msgspec.Struct):
    turns: list[str | TurnFields]
    session_id: str | None = None
    id: str | int | None = None


_decoder = msgspec.json.Decoder(_Conversation)


def parse(
    lines: Lines, source: str, *, limit: int | None = None
) -> tuple[list[PromptConversation], int]:
    """Parse the first `limit` conversations of a file. Returns them and the number of skipped ones,
    which is 0.

    Raises DatasetError that names file and line.
    """
    parsed = decoded(lines, source, _decoder, expected=EXPECTED)
    return parse_entries(parsed, _entry, limit=limit, expected=EXPECTED)


def _entry(written: _Conversation) -> tuple[str | int | None, tuple[PromptTurn, ...]]:
    return written.session_id or written.id, _turns(written.turns)


def _turns(written: list[str | TurnFields]) -> tuple[PromptTurn, ...]:
    if not written:
        raise ValueError("`turns` is empty")
    if len(written) > MAX_TURNS:
        raise ValueError(f"{len(written):,} turns: expected at most {MAX_TURNS:,}")
    turns: list[PromptTurn] = []
    before: list[Json] = []
    parts: list[PromptTurn] = []
    """Messages that precede the next turn's, and their turns."""
    for position, item in enumerate(written):
        fields = TurnFields(text=item) if isinstance(item, str) else item
        try:
            if fields.role is not None and fields.role not in ROLES:
                raise ValueError(f"role {fields.role!r}: expected {', '.join(ROLES)}")
            if fields.role == "tool" and not turns:
                raise ValueError("role `tool`: no request before it, whose response calls a tool")
            if fields.role == "assistant":
                if _has_results(before):
                    turns.append(_joined(Prompt(messages=tuple(before)), parts))
                    before, parts = [], []
                _add_response(turns, before, fields)
                continue
            turn = _turn(fields)
            if fields.role in (*SYSTEM_ROLES, "tool"):
                before.extend(_instructions(turn.prompt))
                parts.append(turn)
                continue
            if before:
                turn = _joined(_instructed(turn.prompt, before), [*parts, turn])
                before, parts = [], []
        except ValueError as error:
            raise ValueError(f"turns[{position}]: {error}") from None
        turns.append(turn)
    if _has_results(before):
        turns.append(_joined(Prompt(messages=tuple(before)), parts))
    elif before:
        raise ValueError("the last turn is an instruction that no request carries")
    return tuple(turns)


def _joined(prompt: Prompt, parts: list[PromptTurn]) -> PromptTurn:
    """Merge several turns into one request, which waits for the last of them. Its output length is
    the last stated one."""
    lengths = (each.prompt.output_tokens for each in reversed(parts))
    length = next((each for each in lengths if each is not None), None)
    return PromptTurn(
        msgspec.structs.replace(prompt, output_tokens=length),
        delay_ns=max(each.delay_ns for each in parts),
        has_delay=any(each.has_delay for each in parts),
    )


def _has_results(messages: list[Json]) -> bool:
    return any(message["role"] == "tool" for message in messages)


def _add_response(turns: list[PromptTurn], before: list[Json], fields: TurnFields) -> None:
    if not turns or turns[-1].recorded or before:
        raise ValueError("role `assistant`: a response follows the request that it answers")
    text = fields.text if fields.text is not None else fields.content
    message: Json = {"role": "assistant", "content": text}
    for name in ("reasoning", "reasoning_content", "tool_calls"):
        if (value := getattr(fields, name)) is not None:
            message[name] = value
    messages = fields.messages or [message]
    if not fields.messages and text is None and not fields.tool_calls:
        raise ValueError("role `assistant`: needs `text`, `tool_calls` or `messages`")
    turns[-1] = msgspec.structs.replace(turns[-1], response=text or "", recorded=tuple(messages))


def _turn(fields: TurnFields) -> PromptTurn:
    if fields.payload is not None:
        raise ValueError("`payload` is a whole request and cannot carry a history; use `messages`")
    if fields.role == "tool" and fields.messages is None:
        return _result_of(fields)
    return turn_of(fields)


def _result_of(fields: TurnFields) -> PromptTurn:
    """Return the result of a tool as a turn with one message."""
    text = fields.text if fields.text is not None else fields.content
    others = ("prompt", "texts", "query", "image", "images", "audio", "audios")
    if any(getattr(fields, name) is not None for name in others):
        raise ValueError("role `tool`: the result of a tool is one `text`")
    if text is not None and fields.tokens is not None:
        raise ValueError("role `tool`: has both `text` and `tokens`")
    if fields.tokens is not None and not 1 <= fields.tokens <= MAX_INPUT_TOKENS:
        raise ValueError(f"`tokens` {fields.tokens} is not between 1 and {MAX_INPUT_TOKENS:,}")
    message = {
        "role": "tool",
        "tool_call_id": fields.tool_call_id,
        "content": Unwritten(fields.tokens or 0) if text is None else text,
    }
    return PromptTurn(
        Prompt(messages=(message,), output_tokens=output_tokens(fields)),
        delay_ns=delay_ns(fields.delay or 0.0),
        has_delay=fields.delay is not None,
    )


def _instructions(prompt: Prompt) -> tuple[Any, ...]:
    if prompt.media or prompt.passages:
        raise ValueError("an instruction is text; images, sounds and passages belong to a user")
    return _as_messages(prompt)


def _instructed(prompt: Prompt, instructions: list[Json]) -> Prompt:
    """Return a prompt after instructions. Pictures and sounds have not been read yet, so they are
    not a message yet."""
    if prompt.passages:
        raise ValueError("`passages` are ranked, and no ranking takes an instruction")
    if not prompt.media:
        messages = (*instructions, *_as_messages(prompt))
        return Prompt(messages=messages, output_tokens=prompt.output_tokens)
    if _has_results(instructions):
        raise ValueError("images and sounds cannot follow the result of a tool in one request")
    contents = [each.get("content") for each in instructions if each["role"] == "system"]
    texts = [text for text in contents if isinstance(text, str)]
    if len(texts) != len(instructions):
        raise ValueError(
            "images and sounds can only follow instructions that are texts of role `system`"
        )
    return msgspec.structs.replace(prompt, system="\n\n".join(texts))


def _as_messages(prompt: Prompt) -> tuple[Any, ...]:
    if prompt.messages:
        return prompt.messages
    return tuple({"role": prompt.role, "content": text} for text in prompt.texts)
