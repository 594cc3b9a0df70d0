"""Selects the model that a prompt requests. It depends only on the number of the dataset entry, so
records need not contain it, and all turns of a conversation go to the same model."""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.splitmix import GAMMA, mixed

_SCALE = 2.0**-64


def model_numbers(config: BenchmarkConfig, entries: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the number of the model, in `endpoint.all_models`, of each dataset entry."""
    endpoint = config.endpoint
    weights = np.array(weights_of(endpoint))
    if endpoint.model_selection == "random":
        shares = np.cumsum(weights) / weights.sum()
        drawn = _uniform(entries.astype(np.uint64), config.random_seed)
        return np.searchsorted(shares, drawn, side="right").astype(np.int64)
    cycle = np.array(_cycle(weights_of(endpoint)))
    # Several URLs are used in turn too, and each of them must get every model.
    rounds = entries.astype(np.int64) // len(endpoint.all_urls)
    found: NDArray[np.int64] = cycle[rounds % len(cycle)]
    return found


def weights_of(endpoint: Endpoint) -> tuple[int, ...]:
    return endpoint.model_weights or (1,) * len(endpoint.all_models)


def _cycle(weights: tuple[int, ...]) -> list[int]:
    """Return an order in which each model occurs as often as its weight, as evenly as possible: the
    smooth weighted round robin of nginx."""
    ahead = [0] * len(weights)
    order = []
    for _ in range(sum(weights)):
        ahead = [each + weight for each, weight in zip(ahead, weights, strict=True)]
        chosen = ahead.index(max(ahead))
        ahead[chosen] -= sum(weights)
        order.append(chosen)
    return order


def _uniform(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Return a number in 0..1 for each number, which depends only on it and the seed."""
    with np.errstate(over="ignore"):
        state = (numbers + np.uint64(1)) * GAMMA
        state += np.uint64(seed) * np.uint64(0xD1B54A32D192ED03)
    drawn: NDArray[np.float64] = mixed(state).astype(np.float64) * _SCALE
    return np.minimum(drawn, np.nextafter(1.0, 0.0))
