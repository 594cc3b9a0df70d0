"""Simulated systems for comparisons: requests wait in one queue for 16 servers."""

import numpy as np
from numpy.typing import NDArray

SERVERS = 16
WARMUP = 2_000
"""Requests that fill the empty queue and are not measured."""

Floats = NDArray[np.float64]


def latencies(
    load: float | Floats, *, systems: int, requests: int, seed: int
) -> tuple[Floats, Floats]:
    """Return arrival times and latencies of independent systems, one row each, in units of the mean
    service time. Arrivals are Poisson, service times are exponential, and the queue is first come,
    first served. `load` applies to all systems or has one value for each."""
    random = np.random.default_rng(seed)
    total = WARMUP + requests
    due = random.exponential(1 / (SERVERS * load), (total, systems)).cumsum(axis=0)
    service = random.exponential(1.0, (total, systems))
    # When each server becomes idle, in ascending order, and an upper sentinel.
    free = np.zeros((SERVERS + 1, systems))
    free[-1] = np.inf
    later = np.empty((SERVERS, systems))
    for place in range(total):
        end = np.maximum(due[place], free[0]) + service[place]
        # Remove the first and insert the new end in order.
        np.maximum(free[:-1], end, out=later)
        np.minimum(free[1:], later, out=free[:-1])
        service[place] = end - due[place]
    return due[WARMUP:].T, service[WARMUP:].T
