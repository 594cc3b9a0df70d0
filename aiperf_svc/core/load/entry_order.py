"""Maps conversations to dataset entries if they do not simply follow the dataset.

A shuffled dataset is built in the order of its first pass, and each later pass has another order.
With a random order, each conversation draws its entry independently. The order depends only on the
seed and the number of the pass, so all workers and the timing manager agree on it.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import AGENT_TRACES, TRACES

_KEY = 0x0DE2
"""Key that separates these random numbers from others with the same seed."""
_KEPT = 2
"""Number of cached passes: around the end of a pass, conversations of two passes begin."""


class EntryOrder:
    """The order of a number of entries, pass after pass."""

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
    """Return the order of `count` entries. None: conversation `i` is entry `i` modulo `count`.

    Traces are read sequentially in blocks, and users with their own clocks take one conversation
    after the other. For both, all passes have the same order.
    """
    dataset = config.dataset
    is_fixed = dataset.kind in (*TRACES, *AGENT_TRACES) or config.load.user_centric is not None
    if dataset.order == "sequential" or is_fixed:
        return None
    return EntryOrder(dataset.order, count, config.random_seed)
