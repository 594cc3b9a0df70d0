"""Draws token counts from a configured distribution."""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.models import Length


def draw_lengths(length: Length, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` whole token counts from a normal distribution; values below one become one.

    The first values do not depend on `count`, so a longer dataset begins with the shorter one.
    """
    drawn = rng.normal(length.mean, length.stddev, size=count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)
