"""A queue with known capacity: FIFO, 16 servers, fixed service time, Poisson arrivals."""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.experiments.evidence import Evidence
from aiperf_svc.core.experiments.search import Search, SearchedTrial
from aiperf_svc.core.results.slo_results import BATCHES

SERVERS, SERVICE_S, LIMIT_S = 16, 0.1, 0.2
WARMUP_S = 10.0
Floats = NDArray[np.float64]


def waits(rng: np.random.Generator, rate: float, count: int) -> tuple[Floats, Floats]:
    """Return arrival times and waits of at least `count` requests. With a fixed service time,
    request `i` follows request `i - 16` on its server, so each server has its own recursion
    (Lindley): s = max(a, s_before + D)."""
    arrivals = _arrivals(rng, count) / rate
    return arrivals, _waits(arrivals)


def _arrivals(rng: np.random.Generator, count: int) -> Floats:
    """Return arrivals at one request per second. Their number is a multiple of the servers."""
    return np.cumsum(rng.exponential(1.0, -(-count // SERVERS) * SERVERS))


def _waits(arrivals: Floats) -> Floats:
    turns = arrivals.reshape(-1, SERVERS)
    service = np.arange(len(turns))[:, None] * SERVICE_S
    starts = np.maximum.accumulate(turns - service) + service
    return starts.ravel() - arrivals


def true_knee(allowed: float, requests: int = 2_000_000) -> float:
    """Return the highest rate with at most the share `allowed` of long waits, from long runs."""
    low, high = 1.0, SERVERS / SERVICE_S
    arrivals = _arrivals(np.random.default_rng(1), requests)
    for _ in range(14):
        rate = (low + high) / 2
        if np.mean(_waits(arrivals / rate) > LIMIT_S) <= allowed:
            low = rate
        else:
            high = rate
    return low


def measure(rng: np.random.Generator, rate: float, seconds: float) -> Evidence:
    """Return the evidence of a run of this length about the 99th percentile of the wait."""
    count = int(rate * (seconds + WARMUP_S) * 1.2 + 100)
    arrivals, waited = waits(rng, rate, count)
    inside = (arrivals >= WARMUP_S) & (arrivals < WARMUP_S + seconds)
    waited, since = waited[inside], arrivals[inside] - WARMUP_S
    batch = (since / seconds * BATCHES).astype(int)
    p99 = float(np.quantile(waited, 0.99))
    return Evidence(
        name="p99 wait",
        bound="max",
        limit=LIMIT_S,
        measured=p99,
        unit="s",
        is_met=p99 <= LIMIT_S,
        counts=tuple(np.bincount(batch, minlength=BATCHES).tolist()),
        totals=tuple(np.bincount(batch, weights=waited > LIMIT_S, minlength=BATCHES).tolist()),
        allowed=0.01,
    )


def run(search: Search, rng: np.random.Generator, seconds: float) -> None:
    """Run a search whose longer trials have their own length."""
    while (parameters := search.next()) is not None:
        length = float(parameters.get("load.duration", seconds))
        found = measure(rng, parameters["load.request_rate"], length)
        search.add(parameters, SearchedTrial(evidence=(found,)))
