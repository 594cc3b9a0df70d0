"""Inserts markers into prompts so that no server has them in its prefix cache.

The marker of an entry depends on the seed and the entry's number: the same config sends the same
markers, and another seed sends others. A repeated entry has the same marker again. Markers of
conversations and requests depend on the seed and the credit's index instead. They are only known
when a request is made, so the dataset contains a placeholder of the same length.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import CacheBust
from aiperf_svc.core.datasets.base import PromptConversation, PromptTurn, TokenCounter
from aiperf_svc.core.endpoints.base import SYSTEM_ROLES, Prompt
from aiperf_svc.domain.json_objects import Json

_DIGITS: Final = 16
_RUN_DIGITS: Final = 12
"""Hexadecimal digits of a conversation's marker, as in AIPerf and InferenceX."""
_PROMPT_KEYS: Final = ("messages", "prompt", "input", "inputs")
"""Members of a payload that contain its prompt or its messages."""
Change = Callable[[str], str]


def with_markers(
    entries: Sequence[PromptConversation],
    numbers: Iterable[int],
    config: BenchmarkConfig,
    counter: TokenCounter | None,
) -> list[PromptConversation]:
    """Return the entries with their markers; `numbers` are their numbers in the whole dataset. The
    marker is in the first turn, and in each later turn that is sent without earlier turns. A marker
    for a missing system prompt goes to the start of the first message."""
    target = config.dataset.cache_bust
    if target is CacheBust.NONE:
        return list(entries)
    markers = run_markers(config)
    marked = []
    for entry, number in zip(entries, numbers, strict=True):
        marker = marker_of(config.prompt_seed, number) if markers is None else markers.placeholder
        turns = tuple(
            _marked(turn, marker, target, counter) if turn.is_whole or not index else turn
            for index, turn in enumerate(entry.turns)
        )
        marked.append(msgspec.structs.replace(entry, turns=turns))
    return marked


def marker_of(seed: int, number: int) -> str:
    digest = hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()
    return f"[{digest[:_DIGITS]}]"


class RunMarkers:
    """The markers of conversations or requests, created during the run."""

    def __init__(self, per: Literal["conversation", "request"], seed: int, *, keeps_phase: bool):
        """With `keeps_phase`, conversations have the same markers in warmup and measurement."""
        self._per, self._seed, self._keeps_phase = per, seed, keeps_phase
        self.placeholder = self._written("placeholder")
        """Placeholder for a marker in the dataset."""
        self._place = self.placeholder.encode()

    def marked(self, payload: bytes, phase: int, index: int, turn: int) -> bytes:
        """Return the bytes of a request with its marker; `index` is the credit's."""
        name = f"{0 if self._keeps_phase else phase}/{index}"
        if self._per == "request":
            name = f"{name}/{turn}"
        return payload.replace(self._place, self._written(name).encode())

    def _written(self, name: str) -> str:
        digest = hashlib.sha256(f"{self._seed}/{self._per}/{name}".encode()).hexdigest()
        if self._per == "request":
            return f"[{digest[:_DIGITS]}]"
        return f"[rid:{digest[:_RUN_DIGITS]}]"


def run_markers(config: BenchmarkConfig) -> RunMarkers | None:
    """Return the markers that a config inserts during the run; None if entries have them, or if
    there are none."""
    dataset = config.dataset
    if dataset.cache_bust is CacheBust.NONE or dataset.cache_bust_per == "entry":
        return None
    keeps_phase = config.load.agentic is not None
    return RunMarkers(dataset.cache_bust_per, config.prompt_seed, keeps_phase=keeps_phase)


def marked_messages(messages: Sequence[Any], target: CacheBust, marker: str) -> list[Json]:
    roles = SYSTEM_ROLES if target.is_for_system else ("user",)
    return _in_messages(messages, roles, _change(marker, target))


def _change(marker: str, target: CacheBust) -> Change:
    if target in (CacheBust.SYSTEM_PREFIX, CacheBust.FIRST_TURN_PREFIX):
        return lambda text: f"{marker}\n\n{text}"
    return lambda text: f"{text}\n\n{marker}"


def _marked(
    turn: PromptTurn, marker: str, target: CacheBust, counter: TokenCounter | None
) -> PromptTurn:
    prompt, added = turn.prompt, 0
    if target is CacheBust.SYSTEM_SUFFIX and not _has_system(prompt):
        target = CacheBust.FIRST_TURN_PREFIX
    change, is_for_system = _change(marker, target), target.is_for_system

    def changed(text: str) -> str:
        nonlocal added
        made = change(text)
        if counter is not None:
            added += counter.count(made) - counter.count(text)
        return made

    roles = SYSTEM_ROLES if is_for_system else ("user",)
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


def _has_system(prompt: Prompt) -> bool:
    payload = prompt.payload or {}
    lists = (prompt.messages, *(payload.get(key) for key in _PROMPT_KEYS))
    messages = chain.from_iterable(each for each in lists if isinstance(each, list | tuple))
    return bool(prompt.system) or any(
        isinstance(each, Mapping) and each.get("role") in SYSTEM_ROLES for each in messages
    )


def _in_payload(prompt: Prompt, roles: Sequence[str], changed: Change) -> Json:
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


def _in_messages(messages: Sequence[Any], roles: Sequence[str], changed: Change) -> list[Json]:
    """Return messages after changing the first with one of the roles, or else the first of
    all."""
    having = [index for index, message in enumerate(messages) if message.get("role") in roles]
    made = [dict(message) for message in messages]
    message = made[having[0] if having else 0]
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = changed(content)
    elif isinstance(content, list):
        message["content"] = parts = list(content)
        for index, part in enumerate(parts):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                parts[index] = part | {"text": changed(part["text"])}
                break
    return made
