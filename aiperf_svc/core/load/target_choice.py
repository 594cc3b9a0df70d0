"""Which of several targets a request goes to: each in turn by the index of its credit, so that all
turns of a conversation go to one target."""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig


def shift_of(config: BenchmarkConfig) -> int:
    """Return what is added to an index, by the seed."""
    return config.random_seed % len(config.endpoint.all_urls)


def target_numbers(config: BenchmarkConfig, index: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of the target, in `endpoint.all_urls`, of each credit."""
    count = len(config.endpoint.all_urls)
    return ((index.astype(np.int64) + shift_of(config)) % count).astype(np.int64)
