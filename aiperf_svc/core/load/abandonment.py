"""Decides which requests their clients abandon.

The choice depends on the seed, the credit's index and the turn alone, so it is the same however the
credits are dealt to workers, and whatever the server does. Each request is chosen by itself with
the same chance: the three numbers are mixed to 64 bits by the finaliser of splitmix64 (Steele, Lea
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
        """`share` of all requests is abandoned `delay_ns` after they were sent whole."""
        self.delay_ns = delay_ns
        self._below = round(share * 2**64)
        self._seed = _mixed(seed + _GAMMA)

    def is_chosen(self, index: int, turn: int) -> bool:
        """Return whether a request, by the index of its credit and its turn, is to be abandoned."""
        return _mixed(_mixed(self._seed + _GAMMA * index) + turn) < self._below


def abandonment_of(config: BenchmarkConfig) -> Abandonment | None:
    """Return what a config says of it; None if nothing is to be abandoned."""
    cancellation = config.load.cancellation
    if cancellation is None or not cancellation.rate:
        return None
    return Abandonment(
        share=cancellation.rate, delay_ns=cancellation.delay, seed=config.random_seed
    )


def _mixed(number: int) -> int:
    """Return 64 bits in which every bit of the number counts."""
    number &= _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
