"""Puts tokens that requests share before those of synthetic prompts: a system prompt that all have,
and prefixes that groups of requests have.

A prefix ends with a word, and the prompt's own text begins with a space and a word, which
tokenizers keep apart. So the shared tokens are the same in all prompts of a group. The end of a
prompt is repaired where its first words have another number of tokens than at the start of a text.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from aiperf_svc.config.prompts import Prefix
from aiperf_svc.core.datasets.base import (
    PromptConversation,
    Purpose,
    TokenCounter,
    generator,
)
from aiperf_svc.core.datasets.synthetic import exact_texts, repaired


def with_prefixes(
    entries: Sequence[PromptConversation],
    prefix: Prefix,
    seed: int,
    counter: TokenCounter | None,
    *,
    takes_messages: bool,
) -> list[PromptConversation]:
    """Return entries whose first turn begins with the shared tokens. With `takes_messages` the
    system prompt is a message of its own, otherwise the beginning of the text.

    The first entries do not depend on their number. Raises DatasetError if the tokenizer cannot
    make a text of a requested length.
    """
    if prefix == Prefix():
        return list(entries)
    lengths = [prefix.tokens] * prefix.groups + [prefix.system_tokens] * bool(prefix.system_tokens)
    rng = generator(seed, Purpose.PREFIX_WORDS)
    texts = exact_texts(np.array(lengths, dtype=np.int64), "dataset.prefix", rng, counter)
    system = prefix.system_prompt or (texts[-1] if prefix.system_tokens else "")
    system_tokens = counter.count(system) if counter is not None and system else 0
    groups = _groups(prefix.groups, len(entries), seed)
    contexts = _contexts(prefix, len(entries), seed, counter)
    completed = []
    for entry, group, context in zip(entries, groups, contexts, strict=True):
        turn = entry.turns[0]
        before = [texts[group]] if prefix.groups else []
        if system and not takes_messages:
            before.insert(0, system)
        text = " ".join([*before, *context, *turn.prompt.texts])
        tokens = turn.input_tokens
        if counter is not None:
            tokens += prefix.tokens + prefix.context_tokens + system_tokens
            own = tokens - (system_tokens if takes_messages else 0)
            text = repaired(text, own, counter)
        prompt = msgspec.structs.replace(
            turn.prompt, texts=(text,), system=system if takes_messages else ""
        )
        turn = msgspec.structs.replace(turn, prompt=prompt, input_tokens=tokens)
        completed.append(msgspec.structs.replace(entry, turns=(turn, *entry.turns[1:])))
    return completed


def _contexts(
    prefix: Prefix, count: int, seed: int, counter: TokenCounter | None
) -> list[list[str]]:
    """Return the text that only one entry begins with, of each entry."""
    if not prefix.context_tokens:
        return [[]] * count
    lengths = np.full(count, prefix.context_tokens, dtype=np.int64)
    rng = generator(seed, Purpose.CONTEXT_WORDS)
    return [[text] for text in exact_texts(lengths, "dataset.prefix", rng, counter)]


def _groups(number: int, count: int, seed: int) -> list[int]:
    """Return the group of each entry: all groups in a new random order, again and again."""
    if not number:
        return [0] * count
    rng = generator(seed, Purpose.GROUPS)
    rounds = [rng.permutation(number) for _ in range(-(-count // number))]
    return np.concatenate(rounds)[:count].tolist() if rounds else []
