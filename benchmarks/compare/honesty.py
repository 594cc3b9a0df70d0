"""Measures how often tests raise a false alarm for equal systems, and how often they detect 10%
more latency.

    python -m benchmarks.compare.honesty

Simulates pairs of identical systems (one queue, 16 servers) and prints the share of pairs that a
test at the 5% level calls different. First come tests that treat requests as samples, then those
that `aiperf-svc compare` uses. RUN_NOISE is the variation of a system's speed between runs.
"""

import math
import sys
from collections.abc import Iterator

import numpy as np

from aiperf_svc.core.compare.estimates import Estimate, batch_quantiles, difference, estimate
from benchmarks.compare.simulated_queues import Floats, latencies

PAIRS = 200
REQUESTS = 20_000
RUN_NOISE = 0.02
SLOWER = 0.10
RESAMPLES = 200
SHARES = (0.5, 0.99)
LOADS = (0.5, 0.8, 0.9)


def main() -> int:
    """Print a table for each load."""
    for load in LOADS:
        due, times = latencies(load, systems=2 * PAIRS, requests=REQUESTS, seed=1)
        found = np.quantile(times, SHARES, axis=1)
        parts = [
            [estimate(part) for part in batch_quantiles((d * 1e9).astype(np.int64), t, SHARES)]
            for d, t in zip(due, times, strict=True)
        ]
        noise = np.random.default_rng(5).normal(1.0, RUN_NOISE, 2 * PAIRS)
        rows: list[tuple[str, list[float]]] = [
            ("Mann-Whitney on requests", [_share(_mann_whitney(a, b) for a, b in _pairs(times))]),
            ("bootstrap of requests", _bootstrap(times)),
            ("t on 10 parts of single runs", [_alarms(_at_percentile(parts, q)) for q in range(2)]),
            (
                f"the same, {RUN_NOISE:.0%} of noise between runs",
                [_alarms(_at_percentile(parts, q), noise) for q in range(2)],
            ),
        ]
        for runs in (3, 5):
            name = f"Welch's t on {runs} and {runs} runs with that noise"
            rows.append((name, [_between(values, runs, 0.0) for values in found]))
        for runs in (3, 5):
            name = f"{SLOWER:.0%} slower, found by {runs} and {runs} runs"
            rows.append((name, [_between(values, runs, SLOWER) for values in found]))
        print(f"load {load}: p50, p99")
        for name, shares in rows:
            print(f"  {name:<42}", *(f"{share:>5.0%}" for share in shares))
    return 0


def _pairs(times: Floats) -> Iterator[tuple[Floats, Floats]]:
    for place in range(0, len(times), 2):
        yield times[place], times[place + 1]


def _share(alarms: Iterator[bool]) -> float:
    return sum(alarms) / PAIRS


def _mann_whitney(base: Floats, new: Floats) -> bool:
    """Return whether the ranks of two samples of equal size differ (normal approximation)."""
    size = len(base)
    ranks = np.argsort(np.argsort(np.concatenate((base, new)))) + 1
    mean, error = size * (2 * size + 1) / 2, math.sqrt(size * size * (2 * size + 1) / 12)
    return bool(abs(ranks[:size].sum() - mean) > 1.96 * error)


def _bootstrap(times: Floats) -> list[float]:
    """Return the share of pairs whose bootstrap interval excludes 0, for each percentile."""
    random = np.random.default_rng(3)
    # A resampled quantile is the value at a binomial rank of the ordered sample.
    ordered = np.sort(times, axis=1)
    shares = []
    for q in SHARES:
        ranks = random.binomial(REQUESTS, q, (2, PAIRS, RESAMPLES)).clip(0, REQUESTS - 1)
        base, new = (np.take_along_axis(ordered[side::2], ranks[side], 1) for side in (0, 1))
        low, high = np.quantile(new - base, (0.025, 0.975), axis=1)
        shares.append(float(np.mean((low > 0) | (high < 0))))
    return shares


def _at_percentile(parts: list[list[Estimate | None]], place: int) -> list[Estimate]:
    return [found for each in parts if (found := each[place]) is not None]


def _alarms(estimates: list[Estimate], speed: Floats | None = None) -> float:
    factors = np.ones(len(estimates)) if speed is None else speed
    scaled = [
        Estimate(each.mean * factor, each.variance * factor**2, each.freedom)
        for each, factor in zip(estimates, factors.tolist(), strict=True)
    ]
    pairs = zip(scaled[::2], scaled[1::2], strict=True)
    return _share(difference(base, new).p < 0.05 for base, new in pairs)


def _between(values: Floats, runs: int, slower: float) -> float:
    """Return the share of comparisons of this many runs a side that find a difference. With
    `slower`, the difference must also exceed half of it."""
    random = np.random.default_rng(7)
    found = 0
    for _ in range(PAIRS):
        drawn = values[random.choice(len(values), size=(2, runs), replace=False)]
        drawn = drawn * random.normal(1.0, RUN_NOISE, size=(2, runs))
        base, new = (estimate(side.tolist()) for side in (drawn[0], drawn[1] * (1 + slower)))
        assert base is not None
        assert new is not None
        moved = difference(base, new)
        found += moved.p < 0.05 and abs(moved.delta) >= slower / 2
    return found / PAIRS


if __name__ == "__main__":
    sys.exit(main())
