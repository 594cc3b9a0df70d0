"""Which entry of the dataset a conversation is, where it is not simply the next one.

A shuffled dataset is built in the order of its first pass, and each further pass has another order.
Of a random one each conversation is drawn, whatever the others are. The order follows from the seed
and the number of the pass alone, so all workers and the timing manager agree on it.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import AGENT_TRACES, TRACES

_KEY = 0x0DE2
"""Key that separates these random numbers from others of the same seed."""
_KEPT = 2
"""Passes whose order is kept: around the end of one, conversations of both begin."""


class EntryOrder:
    """The order of so many entries, pass after pass."""

    def __init__(self, order: Literal["shuffled", "random"], count: int, seed: int) -> None:
        self._is_random = order == "random"
        self._count = count
        self._seed = seed
        self._passes: dict[int, NDArray[np.int64]] = {}

    def entry(self, index: int) -> int:
        number, place = divmod(index, self._count)
        order = self._passes.get(number)
        if order is None:
            while len(self._passes) >= _KEPT:
                del self._passes[min(self._passes)]
            order = self._passes[number] = self._pass(number)
        return int(order[place])

    def entries(self, count: int) -> NDArray[np.int64]:
        """Return the entries of the first conversations."""
        passes = [self._pass(number) for number in range(-(-count // self._count))]
        return np.concatenate([*passes, np.empty(0, np.int64)])[:count]

    def _pass(self, number: int) -> NDArray[np.int64]:
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(_KEY, number)))
        if self._is_random:
            return rng.integers(self._count, size=self._count)
        return rng.permutation(self._count) if number else np.arange(self._count)


def order_of(config: BenchmarkConfig, count: int) -> EntryOrder | None:
    """Return the order of so many entries. None: conversation `i` is entry `i` modulo their number.

    Traces are read in blocks, one after the other, and users with clocks of their own take one
    conversation after the other: of these, all passes are alike.
    """
    dataset = config.dataset
    is_fixed = dataset.kind in (*TRACES, *AGENT_TRACES) or config.load.user_centric is not None
    if dataset.order == "sequential" or is_fixed:
        return None
    return EntryOrder(dataset.order, count, config.random_seed)
