"""Simulated systems to compare: requests that wait in one queue for 16 servers."""

import numpy as np
from numpy.typing import NDArray

SERVERS = 16
WARMUP = 2_000
"""Requests that fill the empty queue; they are not measured."""

Floats = NDArray[np.float64]


def latencies(load: float, *, systems: int, requests: int, seed: int) -> tuple[Floats, Floats]:
    """Arrival times and latencies of independent systems, a row each, in units of the mean service
    time. Arrivals are Poisson, service times exponential, the queue first come, first served."""
    random = np.random.default_rng(seed)
    total = WARMUP + requests
    due = random.exponential(1 / (SERVERS * load), (total, systems)).cumsum(axis=0)
    service = random.exponential(1.0, (total, systems))
    free = np.zeros((systems, SERVERS))
    everyone = np.arange(systems)
    ends = np.empty_like(due)
    for place in range(total):
        server = free.argmin(axis=1)
        end = np.maximum(due[place], free[everyone, server]) + service[place]
        free[everyone, server] = end
        ends[place] = end
    return due[WARMUP:].T, (ends - due)[WARMUP:].T
