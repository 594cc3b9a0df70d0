"""Generates synthetic prompts of common words with a given number of tokens.

With a tokenizer the count is exact. Words are chosen by their number of tokens after a space, which
adds up in every tokenizer that keeps words apart, and the finished texts are encoded again. A text
with another count is repaired with words, letters and punctuation at its end until the count is
right (`repaired`). A byte-level BPE has one token for a common word, so its prompts have about as
many words as tokens. Without a tokenizer a word counts as one token.

If prompts had a common beginning, a server's prefix cache would make responses faster than the load
intends. So the first words are not drawn but depend on the index: entry `i` begins with word `i` of
a shuffled list. Once the list is exhausted, the second word distinguishes entries, then the
third. Prompts of one or two tokens cannot all differ; the dataset's summary reports how many do.

Shared tokens precede the prompts: a system prompt common to all, and prefixes common to groups of
requests (`with_prefixes`). A prefix ends with a word, and the prompt's own text begins with a
space and a word, which tokenizers keep apart. So the shared tokens are the same in all prompts of a
group. The end of a prompt is repaired if its first words have another number of tokens than at the
start of a text.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.dataset import Dataset
from aiperf_svc.config.prompts import Delay, Length, Passages, Prefix
from aiperf_svc.core.datasets.base import (
    MS_NS,
    PromptConversation,
    PromptTurn,
    Purpose,
    TokenCounter,
    default_id,
    generator,
)
from aiperf_svc.core.datasets.words import WORDS
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError

DEFAULT_ENTRIES = 1000
MAX_INPUT_TOKENS = 10_000_000
"""Maximum length. It exceeds any model's context, so a larger value is a mistake."""

MAX_PASSAGES = 10_000
"""Maximum number of passages of a request."""
MAX_TURNS = 1_000
"""Maximum number of turns of a conversation."""

_COUNTED_WORDS = 3
"""Number of words at the start of an entry that depend on its index. They distinguish 1,000³
entries."""
_MAX_REPAIRS = 256
_ENDINGS = (*(" " + word for word in WORDS[::25]), *"aeiostnr.,;:!?-0123456789")
"""Endings that repair a text: words, letters and punctuation differ in their numbers of tokens."""

Int64s = NDArray[np.int64]


def generate(
    dataset: Dataset, count: int, seed: int, counter: TokenCounter | None
) -> list[PromptConversation]:
    """Return `count` entries. The first ones do not depend on `count`.

    Raises DatasetError if the tokenizer cannot make a text of a requested length.
    """
    turns = draw_lengths(dataset.turns.number, count, generator(seed, Purpose.TURNS))
    if turns.size and int(turns.max()) > MAX_TURNS:
        raise DatasetError(
            f"dataset.turns.number: a conversation of {int(turns.max()):,} turns; "
            f"expected at most {MAX_TURNS:,}"
        )
    total = int(turns.sum()) * dataset.batch_size
    inputs, outputs = _lengths(dataset, total, seed)
    key = "dataset.mix" if dataset.mix else "dataset.input_tokens"
    texts = exact_texts(inputs, key, generator(seed, Purpose.WORDS), counter)
    delays_ns = _delays_ns(dataset.turns.delay_ms, int(turns.sum()), seed)

    def turn(place: int) -> PromptTurn:
        part = slice(place * dataset.batch_size, (place + 1) * dataset.batch_size)
        return PromptTurn(
            Prompt(texts=tuple(texts[part]), output_tokens=outputs[part.start]),
            delay_ns=delays_ns[place],
            input_tokens=int(inputs[part].sum()) if counter is not None else -1,
        )

    entries, end = [], 0
    for index, number in enumerate(turns.tolist()):
        begin, end = end, end + number
        entries.append(
            PromptConversation(
                id=default_id(index),
                turns=tuple(turn(place) for place in range(begin, end)),
                place=f"synthetic entry {index}",
            )
        )
    return entries


def draw_lengths(length: Length, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` whole numbers of at least one, within the limits of `length`.

    The first values do not depend on `count`, so a longer dataset begins with the shorter one.
    """
    lowest = length.min or 1
    if length.distribution == "uniform":
        assert length.max is not None
        return rng.integers(lowest, length.max, size=count, endpoint=True)
    if length.distribution == "lognormal":
        # Of a lognormal distribution, variance = (exp(s^2) - 1) mean^2 and mean = exp(m + s^2 / 2).
        variance = math.log1p((length.stddev / length.mean) ** 2)
        drawn = rng.lognormal(math.log(length.mean) - variance / 2, math.sqrt(variance), size=count)
    else:
        drawn = rng.normal(length.mean, length.stddev, size=count)
    return np.clip(np.rint(drawn), lowest, length.max).astype(np.int64)


def _lengths(dataset: Dataset, count: int, seed: int) -> tuple[Int64s, list[int | None]]:
    """Return the tokens of each text, and its output length if a mixture defines one."""
    if not dataset.mix:
        rng = generator(seed, Purpose.INPUT_LENGTHS)
        return draw_lengths(dataset.input_tokens, count, rng), [None] * count
    weights = np.array([shape.weight for shape in dataset.mix])
    chosen = generator(seed, Purpose.MIX).choice(
        len(weights), size=count, p=weights / weights.sum()
    )
    inputs = np.empty(count, dtype=np.int64)
    outputs: list[int | None] = [None] * count
    for number, shape in enumerate(dataset.mix):
        # Each kind has lengths for all positions, so its lengths do not depend on other kinds.
        places = np.flatnonzero(chosen == number)
        rng = generator(seed, Purpose.INPUT_LENGTHS, number)
        inputs[places] = draw_lengths(shape.input_tokens, count, rng)[places]
        if shape.output_tokens is not None:
            rng = generator(seed, Purpose.OUTPUT_LENGTHS, number)
            drawn = draw_lengths(shape.output_tokens, count, rng)
            for place in places.tolist():
                outputs[place] = int(drawn[place])
    return inputs, outputs


def _delays_ns(delay: Delay, count: int, seed: int) -> list[int]:
    drawn_ms = generator(seed, Purpose.DELAYS).normal(delay.mean, delay.stddev, size=count)
    return [int(each) for each in np.rint(np.maximum(drawn_ms, 0.0) * MS_NS)]


def with_passages(
    entries: Sequence[PromptConversation],
    passages: Passages,
    seed: int,
    counter: TokenCounter | None,
) -> list[PromptConversation]:
    """Return entries whose texts are queries, with passages to rank. The first ones do not depend
    on the number of entries. Raises DatasetError like `generate`."""
    numbers = draw_lengths(
        passages.number, len(entries), generator(seed, Purpose.NUMBERS_OF_PASSAGES)
    )
    if numbers.size and int(numbers.max()) > MAX_PASSAGES:
        raise DatasetError(
            f"dataset.passages.number: {int(numbers.max()):,} passages of a request; "
            f"expected at most {MAX_PASSAGES:,}"
        )
    rng = generator(seed, Purpose.PASSAGE_LENGTHS)
    targets = draw_lengths(passages.tokens, int(numbers.sum()), rng)
    rng = generator(seed, Purpose.PASSAGE_WORDS)
    texts = exact_texts(targets, "dataset.passages.tokens", rng, counter)
    completed, end = [], 0
    for entry, number in zip(entries, numbers.tolist(), strict=True):
        begin, end = end, end + number
        (turn,) = entry.turns
        prompt = msgspec.structs.replace(turn.prompt, passages=tuple(texts[begin:end]))
        tokens = turn.input_tokens
        if counter is not None:
            tokens += int(targets[begin:end].sum())
        turn = msgspec.structs.replace(turn, prompt=prompt, input_tokens=tokens)
        completed.append(msgspec.structs.replace(entry, turns=(turn,)))
    return completed


def with_prefixes(
    entries: Sequence[PromptConversation],
    prefix: Prefix,
    seed: int,
    counter: TokenCounter | None,
    *,
    takes_messages: bool,
) -> list[PromptConversation]:
    """Return entries whose first turn begins with the shared tokens. With `takes_messages` the
    system prompt is a separate message, otherwise the beginning of the text.

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
    """Return for each entry the text that only this entry begins with."""
    if not prefix.context_tokens:
        return [[]] * count
    lengths = np.full(count, prefix.context_tokens, dtype=np.int64)
    rng = generator(seed, Purpose.CONTEXT_WORDS)
    return [[text] for text in exact_texts(lengths, "dataset.prefix", rng, counter)]


def _groups(number: int, count: int, seed: int) -> list[int]:
    """Return the group of each entry: all groups in a new random order, repeatedly."""
    if not number:
        return [0] * count
    rng = generator(seed, Purpose.GROUPS)
    rounds = [rng.permutation(number) for _ in range(-(-count // number))]
    return np.concatenate(rounds)[:count].tolist() if rounds else []


def exact_texts(
    targets: Int64s, key: str, rng: np.random.Generator, counter: TokenCounter | None
) -> list[str]:
    """Return one text per target, with exactly that many tokens. `key` is the config key of the
    targets."""
    if targets.size and int(targets.max()) > MAX_INPUT_TOKENS:
        raise DatasetError(
            f"{key}: a prompt of {int(targets.max()):,} tokens; "
            f"expected at most {MAX_INPUT_TOKENS:,}"
        )
    texts = _texts(targets, rng, counter)
    if counter is None:
        return texts
    counts = counter.count_batch(texts)
    return [
        text if have == want else repaired(text, want, counter)
        for text, have, want in zip(texts, counts, targets.tolist(), strict=True)
    ]


def _texts(targets: Int64s, rng: np.random.Generator, counter: TokenCounter | None) -> list[str]:
    """Return one text per target. Its length is right if words have the same number of tokens
    everywhere."""
    costs, first_costs = word_costs(counter)
    words = np.array(WORDS, dtype=object)
    cheap = np.flatnonzero(costs == costs.min())
    cheapest = int(costs.min())
    begin = _beginnings([rng.permutation(len(WORDS)) for _ in range(_COUNTED_WORDS)])
    texts = []
    for index, target in enumerate(targets.tolist()):
        chosen = rng.integers(len(WORDS), size=target)
        filling = rng.integers(len(cheap), size=int(costs.max()))
        counted = begin(index)[:target]
        chosen[: len(counted)] = counted
        total = np.cumsum(costs[chosen])
        total += first_costs[chosen[0]] - costs[chosen[0]]
        whole = int(np.searchsorted(total, target, side="right"))
        missing = target - (int(total[whole - 1]) if whole else 0)
        fill = cheap[filling[: missing // cheapest]] if whole else cheap[:0]
        texts.append(" ".join(words[np.concatenate((chosen[:whole], fill))]))
    return texts


def word_costs(counter: TokenCounter | None) -> tuple[Int64s, Int64s]:
    """Return the tokens of each word after a space, and at the start of a text."""
    if counter is None:
        ones = np.ones(len(WORDS), dtype=np.int64)
        return ones, ones
    anchor = WORDS[0]
    after = np.array(counter.count_batch([f"{anchor} {word}" for word in WORDS]), dtype=np.int64)
    costs = np.maximum(after - counter.count(anchor), 1)
    return costs, np.array(counter.count_batch(WORDS), dtype=np.int64)


def _beginnings(shuffles: list[Int64s]) -> Callable[[int], list[int]]:
    """Return a function from entry to its first words, as indexes into the word list: a different
    row for each entry.

    The row contains the digits of the index in base `len(WORDS)`. Each digit is shifted by the
    previous one; otherwise the second word would be the same for all of the first 1,000 entries.
    """
    size = len(WORDS)

    def begin(index: int) -> list[int]:
        row, place = [], 0
        for shuffled in shuffles:
            place = (place + index) % size
            row.append(int(shuffled[place]))
            index //= size
        return row

    return begin


def repaired(text: str, target: int, counter: TokenCounter) -> str:
    """Return `text` with a changed end, so that it has `target` tokens.

    Each round cuts the last word (or letter) of a text that is too long, or appends to a short text
    the ending with most of the missing tokens. An ending is counted after the last words only; the
    whole text is counted after every round.
    """
    have = counter.count(text)
    for _ in range(_MAX_REPAIRS):
        if have == target:
            return text
        if have > target:
            text = text.rpartition(" ")[0] or text[:-1]
        else:
            missing = target - have
            last = " ".join(text.rsplit(" ", 2)[1:]) or text
            counts = counter.count_batch([last, *((last + end).lstrip() for end in _ENDINGS)])
            costs = [
                (count - counts[0], end) for count, end in zip(counts[1:], _ENDINGS, strict=True)
            ]
            fitting = [pair for pair in costs if 0 < pair[0] <= missing]
            if not fitting:
                break
            cost, ending = max(fitting, key=lambda pair: pair[0])
            text = (text + ending * (missing // cost if ending[0] == " " else 1)).lstrip()
        have = counter.count(text)
    raise DatasetError(
        f"tokenizer {counter.name!r} could not make a prompt of exactly {target:,} tokens, the "
        f"nearest has {have:,}; use another dataset.input_tokens, or a file dataset"
    )
