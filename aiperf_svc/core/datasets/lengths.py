"""Draws whole numbers, such as token counts, from a configured distribution."""

import math

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.prompts import Length


def draw_lengths(length: Length, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` whole numbers of at least one, within the limits of `length`.

    The first values do not depend on `count`, so a longer dataset begins with the shorter one.
    """
    lowest = length.min or 1
    if length.distribution == "uniform":
        assert length.max is not None
        return rng.integers(lowest, length.max, size=count, endpoint=True)
    if length.distribution == "lognormal":
        # Of a lognormal distribution, variance = (exp(s^2) - 1) mean^2 and mean = exp(m + s^2 / 2).
        variance = math.log1p((length.stddev / length.mean) ** 2)
        drawn = rng.lognormal(math.log(length.mean) - variance / 2, math.sqrt(variance), size=count)
    else:
        drawn = rng.normal(length.mean, length.stddev, size=count)
    return np.clip(np.rint(drawn), lowest, length.max).astype(np.int64)
