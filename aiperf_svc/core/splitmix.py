"""Random bits that depend only on numbers, for many numbers at once."""

import numpy as np
from numpy.typing import NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor that is applied to a counter before its bits are mixed."""


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 bits for each number that depend on all of its bits: the finaliser of splitmix64
    (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
