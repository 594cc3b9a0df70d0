"""Generates the text of a prompt from the hash ids of its blocks, so that prompts with the same
leading ids have the same leading tokens.

A hash id always yields the same words. Their tokens after a space add up to the size of a block, so
blocks begin and end at token boundaries. The last block of a prompt may be shorter: it begins with
the words of the whole block. Where words cannot add up to the exact number, the end is repaired
(`synthetic.repaired`), which leaves the preceding whole blocks unchanged.
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.datasets.base import Purpose, TokenCounter, generator
from aiperf_svc.core.datasets.synthetic import repaired, word_costs
from aiperf_svc.core.datasets.words import WORDS
from aiperf_svc.core.splitmix import GAMMA, mixed

_WORDS = np.array(WORDS, dtype=object)
_WORD_BYTES = 6
_FILL_COSTS = 4
"""Maximum filling at the end of a block, in multiples of the longest word's tokens."""


class _Owner(IntEnum):
    """Owner of words. The values define the effect of a seed."""

    HASH_ID = 0
    ROW = 1


_KEPT_BYTES = 2**25
"""Bytes of cached whole-block texts, since later rows reuse them."""


class BlockTexts:
    def __init__(self, seed: int, block_size: int, counter: TokenCounter | None) -> None:
        self._seed = seed
        self._block_size = block_size
        self._counter = counter
        self._costs, self._first_costs = word_costs(counter)
        self._anchor_tokens = counter.count(WORDS[0]) if counter is not None else 0
        self._fill = _fillings(self._costs)
        self._fill_texts = [
            None if fill is None else "".join(f" {WORDS[place]}" for place in fill)
            for fill in self._fill
        ]
        self._blocks: OrderedDict[tuple[int, bool], str] = OrderedDict()
        """Texts of whole blocks, least recently used first."""
        self._kept = max(1, _KEPT_BYTES // (block_size * _WORD_BYTES))

    @property
    def is_counted(self) -> bool:
        """Whether the tokens of the texts are exact."""
        return self._counter is not None

    def texts(self, rows: Sequence[tuple[int, Sequence[int], int]]) -> list[str]:
        """Return the text of each row `(number, hash ids, tokens)`, with exactly that many tokens.

        Tokens beyond the blocks of the hash ids belong only to the row. Raises DatasetError if the
        tokenizer cannot make a text of a length.
        """
        texts = [self._text(number, ids, length) for number, ids, length in rows]
        if self._counter is None:
            return texts
        counts = self._counter.count_batch(texts)
        return [
            text if have == length else repaired(text, length, self._counter)
            for text, have, (_, _, length) in zip(texts, counts, rows, strict=True)
        ]

    def _text(self, number: int, ids: Sequence[int], length: int) -> str:
        parts: list[str] = []
        rest = length
        for hash_id in ids:
            size = min(rest, self._block_size)
            parts.append(self._block(hash_id, size, is_first=not parts))
            rest -= size
        if rest:
            parts.append(self._words(_Owner.ROW, number, rest, rest, is_first=not parts))
        return " ".join(part for part in parts if part)

    def _block(self, hash_id: int, size: int, *, is_first: bool) -> str:
        whole = self._block_size
        if size < whole:
            return self._words(_Owner.HASH_ID, hash_id, whole, size, is_first=is_first)
        key = hash_id, is_first
        text = self._blocks.pop(key, None)
        if text is None:
            text = self._words(_Owner.HASH_ID, hash_id, whole, whole, is_first=is_first)
        self._blocks[key] = text
        if len(self._blocks) > self._kept:
            self._blocks.popitem(last=False)
        return text

    def _words(self, owner: _Owner, name: int, drawn: int, size: int, *, is_first: bool) -> str:
        """Return words with `size` tokens: the first of `drawn` words, then the filling."""
        rng = generator(self._seed, Purpose.BLOCKS, owner, name)
        return self._filled(rng.integers(len(WORDS), size=drawn), size, is_first=is_first)

    def _filled(self, chosen: NDArray[np.int64], size: int, *, is_first: bool) -> str:
        return " ".join(_WORDS[self._places(chosen, size, is_first=is_first)])

    def _places(self, chosen: NDArray[np.int64], size: int, *, is_first: bool) -> list[int]:
        """Return the first of the chosen words and the filling, as indexes into the word list."""
        totals = np.cumsum(self._costs[chosen])
        if is_first:
            totals += self._first_costs[chosen[0]] - self._costs[chosen[0]]
        count = int(np.searchsorted(totals, size, side="right"))
        longest = len(self._fill) - 1
        for kept in range(count, 0, -1):
            missing = size - int(totals[kept - 1])
            if missing > longest:
                break
            fill = self._fill[missing]
            if fill is not None:
                return [*chosen[:kept].tolist(), *fill]
        fill = self._fill[size] if size <= longest else None
        if not count and not is_first and fill is not None:
            return list(fill)
        kept_words: list[int] = chosen[:count].tolist()
        return kept_words

    # --- pieces of prompts -----------------------------------------------------------------------

    def piece(self, chosen: NDArray[np.int64], size: int, *, is_first: bool) -> str:
        """Return the first of the chosen words as a piece of a prompt that adds exactly `size`
        tokens after other pieces, with a leading space. Raises DatasetError if the tokenizer cannot
        make such a text."""
        words = self._filled(chosen, size, is_first=is_first)
        if self._counter is None:
            return words if is_first else f" {words}"
        if is_first:
            return repaired(words, size, self._counter)
        text = f"{WORDS[0]} {words}".strip()
        return repaired(text, size + self._anchor_tokens, self._counter)[len(WORDS[0]) :]

    def whole_pieces(self, chosen: NDArray[np.int64]) -> list[str]:
        """Return a whole-block piece for each row of chosen words, like `piece`."""
        size, fillings = self._block_size, self._fill_texts
        costs = self._costs[chosen]
        fits = np.cumsum(costs, axis=1) <= size
        missing = size - (costs * fits).sum(axis=1)
        return [
            f" {' '.join(_WORDS[row[:count]])}{fill}"
            if count and lack < len(fillings) and (fill := fillings[lack]) is not None
            else self._whole_piece(row, size)
            for row, count, lack in zip(
                chosen, fits.sum(axis=1).tolist(), missing.tolist(), strict=True
            )
        ]

    def _whole_piece(self, chosen: NDArray[np.int64], size: int) -> str:
        """Return a whole-block piece with fewer words, since no filling fits after all of them. It
        is encoded only if the tokens do not add up; the whole prompt is encoded later anyway."""
        places = self._places(chosen, size, is_first=False)
        if int(self._costs[places].sum()) == size:
            return f" {' '.join(_WORDS[places])}"
        return self.piece(chosen, size, is_first=False)


def drawn_words(key: int, names: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """Return a row of words, as indexes into the word list, for each name under a key."""
    keyed = mixed(np.add(names, np.uint64(key), dtype=np.uint64) * GAMMA)
    bits = mixed(np.add.outer(keyed, np.arange(count, dtype=np.uint64)) * GAMMA)
    return (bits % np.uint64(len(WORDS))).astype(np.int64)


def _fillings(costs: NDArray[np.int64]) -> list[tuple[int, ...] | None]:
    """Return for each number of tokens the words that add up to it; None if no words
    do."""
    word_of = {int(cost): index for index, cost in enumerate(costs)}
    fillings: list[tuple[int, ...] | None] = [()]
    for size in range(1, _FILL_COSTS * int(costs.max()) + 1):
        found = None
        for cost, word in sorted(word_of.items(), reverse=True):
            before = fillings[size - cost] if cost <= size else None
            if before is not None:
                found = (*before, word)
                break
        fillings.append(found)
    return fillings
