"""Decides which requests are abandoned by their clients.

The choice depends only on the seed, the credit's index and the turn, so it does not depend on the
distribution of credits to workers or on the server. Each request is chosen independently with the
same probability: the finaliser of splitmix64 mixes the three numbers to 64 bits (Steele, Lea
and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014), which are compared with the
share.
"""

from typing import Final

from aiperf_svc.config.benchmark import BenchmarkConfig

_MASK: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15


class Abandonment:
    """The requests of the profiling phase that are to be abandoned."""

    def __init__(self, *, share: float, delay_ns: int, seed: int) -> None:
        """`share` of all requests is abandoned `delay_ns` after they were completely sent."""
        self.delay_ns = delay_ns
        self._below = round(share * 2**64)
        self._seed = _mixed(seed + _GAMMA)

    def is_chosen(self, index: int, turn: int) -> bool:
        """Return whether a request, by the index of its credit and its turn, is to be abandoned."""
        return _mixed(_mixed(self._seed + _GAMMA * index) + turn) < self._below


def abandonment_of(config: BenchmarkConfig) -> Abandonment | None:
    """Return the abandonment of a config; None without any."""
    cancellation = config.load.cancellation
    if cancellation is None or not cancellation.rate:
        return None
    return Abandonment(
        share=cancellation.rate, delay_ns=cancellation.delay, seed=config.random_seed
    )


def _mixed(number: int) -> int:
    """Return 64 bits that depend on every bit of the number."""
    number &= _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
