"""Puts a marker into each entry, so that no server has any of it in its prefix cache.

A marker follows from the seed and the number of the entry: the same config sends the same markers,
and another seed others. An entry that is sent again has its own marker again.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from aiperf_svc.config.dataset import CacheBust
from aiperf_svc.core.datasets.base import PromptConversation, PromptTurn, TokenCounter
from aiperf_svc.core.endpoints.base import Prompt

_DIGITS: Final = 16
_SYSTEM_ROLES: Final = ("system", "developer")
_PROMPT_KEYS: Final = ("messages", "prompt", "input", "inputs")
"""Members of a payload that hold its prompt, or its messages."""
Change = Callable[[str], str]


def with_markers(
    entries: Sequence[PromptConversation],
    numbers: Iterable[int],
    target: CacheBust,
    seed: int,
    counter: TokenCounter | None,
) -> list[PromptConversation]:
    """Return the entries with their markers; `numbers` are theirs in the whole dataset. Where
    markers go into a system prompt that an entry does not have, they go into its first turn."""
    if target is CacheBust.NONE:
        return list(entries)
    marked = []
    for entry, number in zip(entries, numbers, strict=True):
        change = _change(marker_of(seed, number), target)
        first = _marked(entry.turns[0], change, target.is_for_system, counter)
        marked.append(msgspec.structs.replace(entry, turns=(first, *entry.turns[1:])))
    return marked


def marker_of(seed: int, number: int) -> str:
    """Return the marker of an entry."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()
    return f"[{digest[:_DIGITS]}]"


def _change(marker: str, target: CacheBust) -> Change:
    if target in (CacheBust.SYSTEM_PREFIX, CacheBust.FIRST_TURN_PREFIX):
        return lambda text: f"{marker}\n\n{text}"
    return lambda text: f"{text}\n\n{marker}"


def _marked(
    turn: PromptTurn, change: Change, is_for_system: bool, counter: TokenCounter | None
) -> PromptTurn:
    prompt, added = turn.prompt, 0

    def changed(text: str) -> str:
        nonlocal added
        made = change(text)
        if counter is not None:
            added += counter.count(made) - counter.count(text)
        return made

    roles = _SYSTEM_ROLES if is_for_system else ("user",)
    if is_for_system and prompt.system:
        prompt = msgspec.structs.replace(prompt, system=changed(prompt.system))
    elif prompt.messages:
        messages = _in_messages(prompt.messages, roles, changed)
        prompt = msgspec.structs.replace(prompt, messages=tuple(messages))
    elif prompt.payload is not None:
        prompt = msgspec.structs.replace(prompt, payload=_in_payload(prompt, roles, changed))
    elif prompt.texts:
        texts = (changed(prompt.texts[0]), *prompt.texts[1:])
        prompt = msgspec.structs.replace(prompt, texts=texts)
    tokens = turn.input_tokens + added if turn.input_tokens >= 0 else -1
    return msgspec.structs.replace(turn, prompt=prompt, input_tokens=tokens)


def _in_payload(prompt: Prompt, roles: Sequence[str], changed: Change) -> dict[str, Any]:
    payload = dict(prompt.payload or {})
    key = next((key for key in _PROMPT_KEYS if payload.get(key)), "")
    value = payload.get(key)
    if isinstance(value, str):
        payload[key] = changed(value)
    elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
        payload[key] = _in_messages(value, roles, changed)
    elif isinstance(value, list) and isinstance(value[0], str):
        payload[key] = [changed(value[0]), *value[1:]]
    return payload


def _in_messages(
    messages: Sequence[Any], roles: Sequence[str], changed: Change
) -> list[dict[str, Any]]:
    """Return messages of which the first with one of the roles, else the first of all, is
    changed."""
    having = [place for place, message in enumerate(messages) if message.get("role") in roles]
    made = [dict(message) for message in messages]
    message = made[having[0] if having else 0]
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = changed(content)
    elif isinstance(content, list):
        message["content"] = parts = list(content)
        for place, part in enumerate(parts):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                parts[place] = part | {"text": changed(part["text"])}
                break
    return made
